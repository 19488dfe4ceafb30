# SPDX-License-Identifier: Apache-2.0
"""Hugging Face Accelerate reads files of accelerate_config, and accelerate_config updates files of Accelerate. Both
launchers set the same variables of sharded training."""
import os
import subprocess
import sys
import tempfile
import unittest
import warnings
from pathlib import Path

from accelerate.commands.config.config_args import ClusterConfig, load_config_from_file
from accelerate.commands.config.default import write_basic_config
from accelerate.commands.launch import launch_command_parser
from accelerate.utils import DistributedType
from accelerate.utils.launch import prepare_multi_gpu_env

CONFIG = Path(sys.argv.pop(1))
LAUNCH = CONFIG.with_name("accelerate_launch")
FSDP = {"version": "2", "sharding_strategy": "SHARD_GRAD_OP", "reshard_after_forward": "false", "offload_params": "false",
        "min_num_params": "1000", "auto_wrap_policy": "SIZE_BASED_WRAP", "backward_prefetch": "BACKWARD_PRE",
        "state_dict_type": "FULL_STATE_DICT", "forward_prefetch": "true", "use_orig_params": "true",
        "cpu_ram_efficient_loading": "true", "sync_module_states": "true", "activation_checkpointing": "false",
        "activation_checkpointing_offload": "false"}


def of_fsdp(variables):
    return {name: value for name, value in variables.items() if name.startswith("FSDP_") or name == "ACCELERATE_USE_FSDP"}


class ConfigInPython(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name) / "c.yaml"

    def write(self, *arguments, answers=""):
        done = subprocess.run([CONFIG, *arguments, "--config_file", self.path], input=answers, text=True, capture_output=True,
                              timeout=60, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
        self.assertEqual(done.returncode, 0, done.stderr)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            config = load_config_from_file(str(self.path))
        self.assertEqual([str(one.message) for one in caught], [])
        return config

    def test_default(self):
        config = self.write("default", "--mixed_precision", "bf16")
        self.assertIs(config.distributed_type, DistributedType.NO)
        self.assertEqual((config.mixed_precision, config.use_cpu, config.num_processes, config.num_machines), ("bf16", True, 1, 1))

    def test_no_precision_is_the_text_no(self):
        self.assertEqual(self.write("default").mixed_precision, "no")

    def test_several_machines_on_cpus(self):
        config = self.write(answers="1\n2\n1\n10.0.0.1\n4000\n8\nyes\n/etc/hosts\nyes\nyes\n\nfp16\n")
        self.assertIs(config.distributed_type, DistributedType.MULTI_CPU)
        self.assertEqual((config.num_processes, config.num_machines, config.machine_rank), (8, 2, 1))
        self.assertEqual((config.main_process_ip, config.main_process_port), ("10.0.0.1", 4000))
        self.assertEqual(config.mpirun_config, {"mpirun_hostfile": "/etc/hosts"})
        self.assertEqual((config.enable_cpu_affinity, config.debug, config.mixed_precision), (True, True, "fp16"))

    def test_gpus(self):
        config = self.write(answers="2\n\n4\n0,1,2,3\n\n\n\n\n")
        self.assertIs(config.distributed_type, DistributedType.MULTI_GPU)
        self.assertEqual((config.num_processes, config.gpu_ids, config.use_cpu, config.same_network), (4, "0,1,2,3", False, True))

    def test_sharded_training(self):
        config = self.write(answers="1\n1\n2\nno\nno\nHYBRID_SHARD\nbf16\n")
        self.assertIs(config.distributed_type, DistributedType.FSDP)
        self.assertEqual(config.fsdp_config, {"fsdp_sharding_strategy": "HYBRID_SHARD", "fsdp_version": 1})

    def test_update_keeps_all_values_of_accelerates_own_files(self):
        write_basic_config("bf16", str(self.path.with_suffix(".json")))
        ClusterConfig.from_json_file(str(self.path.with_suffix(".json"))).to_yaml_file(str(self.path))
        before = load_config_from_file(str(self.path)).to_dict()
        after = self.write("update").to_dict()
        self.assertEqual({**after, **before}, after)

    def test_update_of_a_file_of_sharded_training_keeps_it(self):
        self.path.write_text("compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nfsdp_config:\n  fsdp_offload_params: false\n"
                             "  fsdp_sharding_strategy: 1\n  fsdp_transformer_layer_cls_to_wrap: 'Block'\nfp16: true\nnum_processes: 2\n"
                             "main_process_ip: null\n")
        config = self.write("update")
        self.assertIs(config.distributed_type, DistributedType.FSDP)
        self.assertEqual(config.fsdp_config, {"fsdp_offload_params": False, "fsdp_sharding_strategy": 1,
                                              "fsdp_transformer_layer_cls_to_wrap": "Block"})
        self.assertEqual((config.mixed_precision, config.num_processes), ("fp16", 2))

    def launched(self, *options):
        done = subprocess.run([LAUNCH, "--cpu", "--num_processes", "1", *options, "env"], text=True, capture_output=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        return of_fsdp(dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line))

    def test_both_launchers_set_the_same_variables_of_sharded_training(self):
        options = ["--use_fsdp", *(f"--fsdp_{name}={value}" for name, value in FSDP.items())]
        job = ["--num_processes=2", "--num_machines=1", "--machine_rank=0", "--main_process_port=29511", "--mixed_precision=no",
               "--dynamo_backend=no", "--gradient_accumulation_steps=1"]
        expected = of_fsdp(prepare_multi_gpu_env(launch_command_parser().parse_args([*options, *job, "x.py"])))
        self.assertEqual(len(expected), len(FSDP) + 1)
        self.assertEqual(self.launched(*options), expected)

    def test_a_file_of_accelerate_has_the_effect_of_the_options(self):
        config = ClusterConfig(compute_environment="LOCAL_MACHINE", distributed_type=DistributedType.FSDP, mixed_precision="no",
                               use_cpu=False, debug=False, num_processes=1,
                               fsdp_config={f"fsdp_{name}": value for name, value in FSDP.items()})
        config.to_yaml_file(str(self.path))
        options = ["--use_fsdp", *(f"--fsdp_{name}={value}" for name, value in FSDP.items())]
        self.assertEqual(self.launched("--config_file", self.path), self.launched(*options))


if __name__ == "__main__":
    unittest.main()
