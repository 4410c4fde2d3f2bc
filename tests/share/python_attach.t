#!/bin/bash
# Python: memory of a program as files, and safetensors files as tensors
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
only_emulated
# shellcheck source=python.sh
. "$tests_folder/share/python.sh"
must_mount
python_cases python_attach.py
unmount_fs
done_testing
