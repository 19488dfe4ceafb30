// SPDX-License-Identifier: Apache-2.0
// Parsers for Slurm's variables: host lists, counts per node, reserved step ids.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "accelerate/env/process_env.hpp"

namespace accelerate::env::slurm {

/// True if srun started this process. The shells of sbatch and salloc have Slurm's variables of the whole job as well,
/// but they are a single process: they have no step, or one of the reserved ids (batch, interactive, extern).
bool in_step(const Variables& variables);

/// Returns the first host: "node[01-04,7],b" -> "node01", "rack[2,5]-n[1-3]" -> "rack2-n1". Returns nothing for text
/// that is not a host list.
std::optional<std::string> first_host(std::string_view node_list);

/// Returns the number of tasks of node number `node` in "2(x3),1"; a single number applies to every node. Returns
/// nothing for other text.
std::optional<int64_t> tasks_of_node(std::string_view tasks_per_node, int64_t node);

/// A port from 15000 to 31999 that all ranks of one step compute identically, below Linux's ephemeral ports.
int64_t port(int64_t job, int64_t step);

}  // namespace accelerate::env::slurm
