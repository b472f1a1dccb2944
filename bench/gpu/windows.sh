#!/usr/bin/env bash
# 4 GiB that grow in requests of 2 to 48 MiB: windows and registration time, against a window for
# each request. The bar is 8 windows.
# shellcheck source-path=SCRIPTDIR source=machine.sh
. "$(dirname "$0")/machine.sh"

expect 0 600 symmem bench windows --backend "$BACKEND" --ranks "$RANKS" --bytes "${BYTES:-4G}"
finish
