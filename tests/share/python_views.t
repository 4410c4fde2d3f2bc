#!/bin/bash
# Python: mapped files as arrays, by DLPack and the CUDA Array Interface
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
only_emulated
# shellcheck source=python.sh
. "$tests_folder/share/python.sh"
must_mount
python_cases python_views.py
unmount_fs
done_testing
