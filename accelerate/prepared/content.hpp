// SPDX-License-Identifier: Apache-2.0
// Private: the registry's objects as a checkpoint's content, and back.
#pragma once

#include <vector>

#include "accelerate/checkpoint/read.hpp"
#include "accelerate/prepared/checkpointing.hpp"
#include "accelerate/prepared/custom_state.hpp"
#include "accelerate/prepared/shared.hpp"

namespace accelerate::prepared {

/// Waits for the device where states depend on flags of it. Tensors are not copied.
[[nodiscard]] checkpoint::Content content_of(Shared& shared, const std::vector<CustomObject>& customs);

/// Throws Error: usage where what is prepared is not what was saved, data where tensors differ in name or shape.
/// Nothing is changed.
void check_content(Shared& shared, const std::vector<CustomObject>& customs, const checkpoint::Read& read,
                   const LoadOptions& options);
/// Puts everything where its owner is. To be called when check_content() passed on all ranks.
void apply_content(Shared& shared, const std::vector<CustomObject>& customs, const checkpoint::Read& read);

}  // namespace accelerate::prepared
