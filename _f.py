from tests.mutation.client_faults import CLIENT_FAULTS
from tests.mutation.mutant import is_noticed
for f in CLIENT_FAULTS:
    try:
        ok=is_noticed(f)
    except BaseException as e:
        ok=repr(e)[:300]
    if ok is not True: print("NOT", f.what, ok)
print("COUNT", len(CLIENT_FAULTS))
