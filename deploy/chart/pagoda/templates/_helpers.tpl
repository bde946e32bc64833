{{- define "pagoda.name" -}}
{{- .Values.fullnameOverride | default .Release.Name | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- define "pagoda.selector" -}}
app.kubernetes.io/name: pagoda
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "pagoda.labels" -}}
{{ include "pagoda.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "pagoda.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "pagoda.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}
{{- .Values.serviceAccount.name | default (include "pagoda.name" .) }}
{{- else }}
{{- .Values.serviceAccount.name | default "default" }}
{{- end }}
{{- end }}

{{- /* what `serve run` and RayService read */}}
{{- define "pagoda.serveConfig" -}}
{{- $files := dict }}
{{- if .Values.apiKeys.existingSecret }}
{{- $_ := set $files "api_keys_file" (printf "/etc/pagoda/api-keys/%s" .Values.apiKeys.key) }}
{{- end }}
{{- if .Values.operatorKeys.existingSecret }}
{{- $_ := set $files "operator_keys_file" (printf "/etc/pagoda/operator-keys/%s" .Values.operatorKeys.key) }}
{{- end }}
proxy_location: EveryNode
http_options: {host: 0.0.0.0, port: 8000, keep_alive_timeout_s: 75}
# one request id in each answer, no client header that lifts Serve's limits
controller_options:
  runtime_env:
    env_vars: {RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH: "app.http.proxy:middlewares"}
logging_config: {encoding: {{ .Values.serve.logEncoding }}, log_level: INFO, enable_access_log: false}
applications:
- name: pagoda
  route_prefix: /
  import_path: app.main:build
  args:
    {{- toYaml (merge $files .Values.options) | nindent 4 }}
  deployments:
  - name: Ingress
    ray_actor_options: {num_cpus: {{ .Values.serve.ingress.numCpus }}}
    autoscaling_config:
      min_replicas: {{ .Values.serve.ingress.minReplicas }}
      max_replicas: {{ .Values.serve.ingress.maxReplicas }}
      target_ongoing_requests: 256
  - name: Engine
    autoscaling_config:
      min_replicas: {{ .Values.serve.engine.minReplicas }}
      max_replicas: {{ .Values.serve.engine.maxReplicas }}
      upscale_delay_s: 15
      downscale_delay_s: 600
      policy:
        policy_function: "app.serve.scaling:EngineScaling"
        policy_kwargs: {usage: 0.8, delay_s: 2.0}
{{- end }}

{{- define "pagoda.env" -}}
# models and compiled kernels
- {name: XDG_CACHE_HOME, value: /cache}
- {name: HF_HOME, value: /cache/huggingface}
- {name: TRITON_CACHE_DIR, value: /cache/triton}
{{- with .Values.huggingFace }}
{{- if .existingSecret }}
- name: HF_TOKEN
  valueFrom: {secretKeyRef: {name: {{ .existingSecret }}, key: {{ .key }}}}
{{- end }}
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "pagoda.mounts" -}}
- {name: cache, mountPath: /cache}
- {name: shared-memory, mountPath: /dev/shm}
{{- if eq .Values.mode "deployment" }}
- {name: config, mountPath: /etc/pagoda/config, readOnly: true}
{{- end }}
{{- if .Values.apiKeys.existingSecret }}
- {name: api-keys, mountPath: /etc/pagoda/api-keys, readOnly: true}
{{- end }}
{{- if .Values.operatorKeys.existingSecret }}
- {name: operator-keys, mountPath: /etc/pagoda/operator-keys, readOnly: true}
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "pagoda.volumes" -}}
- name: cache
  {{- with .Values.cache.persistence }}
  {{- if .enabled }}
  persistentVolumeClaim: {claimName: {{ .existingClaim | default (printf "%s-cache" (include "pagoda.name" $)) }}}
  {{- else }}
  emptyDir: {}
  {{- end }}
  {{- end }}
- name: shared-memory
  emptyDir: {medium: Memory, sizeLimit: {{ .Values.sharedMemory }}}
{{- if eq .Values.mode "deployment" }}
- name: config
  configMap: {name: {{ include "pagoda.name" . }}}
{{- end }}
{{- with .Values.apiKeys.existingSecret }}
- name: api-keys
  secret: {secretName: {{ . }}}
{{- end }}
{{- with .Values.operatorKeys.existingSecret }}
- name: operator-keys
  secret: {secretName: {{ . }}}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* of all pods */}}
{{- define "pagoda.podSpec" -}}
serviceAccountName: {{ include "pagoda.serviceAccount" . }}
terminationGracePeriodSeconds: {{ add (.Values.options.drain_s | default 30 | ceil | int) .Values.endSeconds }}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  {{- toYaml .Values.podSecurityContext | nindent 2 }}
volumes:
  {{- include "pagoda.volumes" . | nindent 2 }}
{{- end }}

{{- /* of pods with an engine */}}
{{- define "pagoda.placement" -}}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* of all containers */}}
{{- define "pagoda.container" -}}
image: {{ include "pagoda.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  {{- toYaml .Values.securityContext | nindent 2 }}
{{- end }}

{{- /* what `pagoda environment --proxy haproxy` prints, for Ray that KubeRay starts */}}
{{- define "pagoda.rayEnv" -}}
- {name: OMP_NUM_THREADS, value: "1"}
- {name: RAY_USAGE_STATS_ENABLED, value: "0"}
- {name: RAY_worker_niceness, value: "0"}
- {name: RAY_enable_worker_prestart, value: "0"}
- {name: RAY_prestart_worker_first_driver, value: "0"}
- {name: RAY_SERVE_FORCE_STOP_UNHEALTHY_REPLICAS, value: "1"}
- {name: RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S, value: "60"}
- {name: RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S, value: "2"}
- {name: TORCH_SYMM_MEM_DISABLE_MULTICAST, value: "1"}
- {name: RAY_SERVE_ENABLE_HA_PROXY, value: "1"}
- {name: RAY_SERVE_THROUGHPUT_OPTIMIZED, value: "1"}
- {name: RAY_SERVE_LOG_TO_STDERR, value: "1"}
- {name: RAY_SERVE_REQUEST_PATH_LOG_BUFFER_SIZE, value: "1"}
- {name: RAY_SERVE_HAPROXY_TIMEOUT_CLIENT_S, value: "60"}
# HAProxy with limits of its own
- {name: RAY_SERVE_HAPROXY_BINARY_PATH, value: /opt/pagoda/bin/pagoda-haproxy}
{{ include "pagoda.env" . }}
{{- end }}
