"""Faults of starting and ending a server, and of fetching its model."""

from app.command.environment import serving_environment
from app.command.own_ray import _private_folder, hide_token, own_ray
from app.command.ports import _holder, _is_free, _needed, _serves
from app.command.ray_node import RayNode, joined_node
from app.command.signals import EndingSignals
from app.command.start.display import PlainDisplay
from app.command.start.plan import ServePlan
from app.command.start.server_folder import RunningServer, ServerFolder
from app.command.start.watcher import Watcher
from app.main import whole_folder
from app.models.bucket import _update, fetch
from app.models.built_folder import _build, _is_current
from app.models.conversion.gguf_model import GgufWeights
from app.models.conversion.pickled_weights import _load, convert_pickled
from app.models.model_store import _with_weights, commit_of
from app.preflight import check
from app.serve.private_port import keep_private_port
from app.serve.run import _start_ray
from tests.mutation.mutant import Fault

COMMAND_FAULTS = [
    # command
    Fault(
        what="a server waits for GPUs that its machine does not have",
        function=_start_ray,
        old="found < num_gpus",
        new="False",
        noticed_by="test_gpus_that_this_machine_does_not_have_end_the_start",
    ),
    Fault(
        what="the GPUs of the first application are all that is looked for",
        function=ServePlan.check,
        old="for each in engines",
        new="for each in engines[:1]",
        noticed_by="test_the_gpus_of_every_application_are_needed",
    ),
    Fault(
        what="only the raylet is watched",
        function=RayNode.lost,
        old="(_RAYLET, _GCS)",
        new="(_RAYLET,)",
        noticed_by="test_a_node_is_lost_with_any_of_its_processes",
    ),
    Fault(
        what="a node that starts late is not watched",
        function=RayNode.lost,
        old="if len(self._found) < 2:",
        new="if not self._found and not self._candidates():",
        noticed_by="test_a_node_that_has_not_started_is_not_lost",
    ),
    Fault(
        what="the end of the first process of a node is waited for before the other is known",
        function=RayNode.ends,
        old="== len((_RAYLET, _GCS))",
        new="> 0",
        noticed_by="test_the_end_of_a_process_of_the_node_can_be_waited_for",
    ),
    Fault(
        what="an end that can be read is taken for a signal",
        function=EndingSignals.wait,
        old="if self._reader not in ready:",
        new="if not ready:",
        noticed_by="test_something_else_that_can_be_read_ends_the_wait",
    ),
    Fault(
        what="a Ray of its own measures itself for nobody",
        function=own_ray,
        old="{} if has_metrics else _NO_METRICS",
        new="{}",
        noticed_by="test_it_measures_itself_only_for_somebody",
    ),
    Fault(
        what="a server ends with another cluster's raylet",
        function=joined_node,
        old="and _gcs_address(process) == address",
        new="",
        noticed_by="test_only_the_joined_clusters_processes_count",
    ),
    Fault(
        what="a server's HAProxy is taken for one that was left behind",
        function=_serves,
        old='parent.name() == "raylet"',
        new='parent.name() == "haproxy"',
        noticed_by="test_what_a_server_holds_is_ended_with_the_server",
    ),
    Fault(
        what="a held port counts as free",
        function=_is_free,
        old="return False",
        new="return True",
        noticed_by="test_who_holds_a_port_and_what_to_do_is_said",
    ),
    Fault(
        what="a client of a port counts as its holder",
        function=_holder,
        old="connection.status == psutil.CONN_LISTEN and ",
        new="connection.status != psutil.CONN_LISTEN and ",
        noticed_by="test_who_holds_a_port_and_what_to_do_is_said",
    ),
    Fault(
        what="HAProxy's own ports are not looked at",
        function=_needed,
        old="has_haproxy(environment)",
        new="not has_haproxy(environment)",
        noticed_by="test_ports_of_haproxy_count_where_it_is_the_proxy",
    ),
    Fault(
        what="the command's environment overrules the caller's",
        function=serving_environment,
        old="**SERVING, **given",
        new="**given, **SERVING",
        noticed_by="test_what_is_set_already_stays",
    ),
    Fault(
        what="a signal is seen twice",
        function=EndingSignals.wait,
        old="number = os.read(self._reader, 1)[0]",
        new="number = os.read(self._reader, 1)[0]; os.write(self._writer, bytes([number]))",
        noticed_by="test_an_ending_signal_is_kept_until_it_is_asked_for",
    ),
    Fault(
        what="another process with the number of a server counts as it",
        function=RunningServer.runs,
        old=".create_time() == self.created_s",
        new=".pid == self.pid",
        noticed_by="test_a_server_is_found_for_as_long_as_its_process_runs",
    ),
    Fault(
        what="others can read an operator's key",
        function=ServerFolder.write_key,
        old="0o600",
        new="0o644",
        noticed_by="test_only_this_user_may_read_folder_and_key",
    ),
    Fault(
        what="the keys of a file are replaced",
        function=ServePlan._add_key,
        old='if args.get("operator_keys_file") is None:',
        new="if True:",
        noticed_by="test_a_server_gets_an_operator_key_where_it_has_none",
    ),
    Fault(
        what="warnings stay in the file",
        function=Watcher._take,
        old="line.level in _PROBLEMS",
        new='line.level == "ERROR"',
        noticed_by="test_stages_come_before_the_banner_and_problems_at_any_time",
    ),
    Fault(
        what="a pipe gets what moves",
        function=PlainDisplay.show,
        old="if stage.is_over:",
        new="if True:",
        noticed_by="test_a_pipe_has_a_line_for_each_part_that_is_over_and_no_control_characters",
    ),
    # models
    Fault(
        what="whatever lies in a bucket is fetched",
        function=_update,
        old="is_wanted(name) and",
        new="",
        noticed_by="test_only_the_wanted_files_are_fetched_and_each_once",
    ),
    Fault(
        what="a changed object is not fetched again",
        function=_update,
        old="fetched.versions.get(name) == version",
        new="name in fetched.versions",
        noticed_by="test_an_object_that_changed_is_fetched_again_and_the_old_file_stays_whole",
    ),
    Fault(
        what="a file in use is written to",
        function=_update,
        old='folder / f".{name}.partial"',
        new="folder / name",
        noticed_by="test_an_object_that_changed_is_fetched_again_and_the_old_file_stays_whole",
    ),
    Fault(
        what="each process of a node fetches",
        function=fetch,
        old='with FileLock(folder.with_name(f"{folder.name}.lock")):',
        new="if True:",
        noticed_by="test_processes_that_ask_at_once_fetch_once",
    ),
    Fault(
        what="tokenizers count as a whole model",
        function=fetch,
        old="if what not in fetched.complete:",
        new="if not fetched.complete:",
        noticed_by="test_a_complete_copy_serves_without_the_store",
    ),
    Fault(
        what="a node without engine fetches weights",
        function=_with_weights,
        old="if not with_weights:",
        new="if False:",
        noticed_by="test_weights_are_fetched_only_where_they_are_needed",
    ),
    Fault(
        what="a folder of the hub's cache is asked of the hub",
        function=commit_of,
        old=" and _is_of_hub(model)",
        new="",
        noticed_by="test_only_what_came_from_the_hub_has_a_commit",
    ),
    Fault(
        what="pickled weights are fetched beside safetensors",
        function=_with_weights,
        old="folder if has_weights(folder) else ",
        new="",
        noticed_by="test_pickled_weights_are_fetched_only_where_there_are_no_others",
    ),
    Fault(
        what="code in pickled weights is run",
        function=_load,
        old="weights_only=True",
        new="weights_only=False",
        noticed_by="test_code_in_a_file_is_never_run",
    ),
    Fault(
        what="a changed source is served as it was converted before",
        function=_is_current,
        old="recorded == source and ",
        new="",
        noticed_by="test_it_is_built_once_and_again_when_its_source_changed",
    ),
    Fault(
        what="a folder is built in its place",
        function=_build,
        old="build(partial)",
        new="folder.mkdir(exist_ok=True); build(folder)",
        noticed_by="test_a_build_that_fails_leaves_nothing_and_the_old_folder_in_use",
    ),
    Fault(
        what="the disk is filled before its space is looked at",
        function=convert_pickled,
        old="check_disk_space(target, total)",
        new="pass",
        noticed_by="test_a_full_disk_is_noticed_before_a_file_is_read",
    ),
    Fault(
        what="rows of heads stay as llama.cpp orders them",
        function=GgufWeights._converted,
        old="_unpermuted(packed, heads)",
        new="packed",
        noticed_by="test_every_family_gets_back_what_was_published",
    ),
    Fault(
        what="norms keep the 1 that was added to them",
        function=GgufWeights._converted,
        old="self._family.has_shifted_norms and",
        new="False and",
        noticed_by="test_every_family_gets_back_what_was_published",
    ),
    Fault(
        what="a tensor that config.json has no place for is dropped",
        function=GgufWeights.tensors,
        old="if unused:",
        new="if False:",
        noticed_by="test_a_tensor_without_a_place_is_refused",
    ),
    Fault(
        what="weights of a local folder are not checked where none are fetched",
        function=check,
        old=" or is_local(config.model)",
        new="",
        noticed_by="test_where_no_engine_runs_weights_to_fetch_are_not_missed",
    ),
    Fault(
        what="others keep their rights to the token",
        function=hide_token,
        old="mode & UMASK:",
        new="False:",
        noticed_by="test_others_lose_their_rights_to_the_token",
    ),
    Fault(
        what="Ray's folder may be anybody's",
        function=_private_folder,
        old="not stat.S_ISDIR(found.st_mode) or",
        new="False and",
        noticed_by="test_what_is_no_folder_of_this_user_is_named",
    ),
    Fault(
        what="Ray's folder stays open to others",
        function=_private_folder,
        old="path.chmod(0o700)",
        new="pass",
        noticed_by="test_its_files_are_in_a_folder_of_this_user",
    ),
    Fault(
        what="weights are loaded whatever became of them",
        function=whole_folder,
        old="verify(folder)",
        new="pass",
        noticed_by="test_weights_that_have_changed_are_not_loaded",
    ),
    Fault(
        what="calls of replicas come in from everywhere",
        function=keep_private_port,
        old='given.replace(_EVERY_INTERFACE, f"{host}:")',
        new="given",
        noticed_by="test_calls_of_other_replicas_come_in_at_the_node_s_own_address",
    ),
]
