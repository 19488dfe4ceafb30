// SPDX-License-Identifier: Apache-2.0
// Files that Hugging Face Accelerate's save_state() writes under FSDP: folders of torch.distributed.checkpoint (DCP,
// SHARDED_STATE_DICT), or whole tensors in files of torch.save (FULL_STATE_DICT).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

#include "accelerate/checkpoint/tensors.hpp"
#include "accelerate/state/optimizer_state.hpp"

namespace accelerate::checkpoint {

class DcpTensors;

/// True if the folder contains a file that DCP writes.
[[nodiscard]] bool is_dcp_folder(const std::filesystem::path& folder);

/// True if a checkpoint has weights of this model as FSDP writes them, also in a form that is not read.
[[nodiscard]] bool has_fsdp_model(const std::filesystem::path& checkpoint, int64_t index);
/// Reads the weights of a model: pytorch_model_fsdp_0/ or pytorch_model_fsdp.bin. Tensors of a DCP folder are
/// placeholders of `dcp`, or have at most one element.
/// \throws Error (io) for a missing file; Error (data) for an invalid one, and for one file per rank, as Accelerate
///         writes with LOCAL_STATE_DICT or without DCP.
[[nodiscard]] NamedTensors read_fsdp_model(const std::filesystem::path& checkpoint, int64_t index,
                                           std::string_view operation, DcpTensors& dcp);

/// True if a checkpoint has the state of this optimizer as FSDP writes it sharded: optimizer_0/.
[[nodiscard]] bool has_fsdp_optimizer(const std::filesystem::path& checkpoint, int64_t index);
/// Reads the state of an optimizer. Its parameters have names, its tensors are placeholders of `dcp`, or have at most
/// one element.
/// \throws Error (io) for a missing file; Error (data) for an invalid one, and for one file per rank.
[[nodiscard]] state::OptimizerState read_fsdp_optimizer(const std::filesystem::path& checkpoint, int64_t index,
                                                        std::string_view operation, DcpTensors& dcp);

/// Reads the tensors of a DCP folder. If all of them were saved in one dict named "model", as Accelerate does, the
/// names are those within it. Tensors are placeholders of `dcp`, or have at most one element.
/// \throws Error (io) for a missing file; Error (data) for an invalid one.
[[nodiscard]] NamedTensors read_dcp_weights(const std::filesystem::path& folder, std::string_view operation,
                                            DcpTensors& dcp);

}  // namespace accelerate::checkpoint
