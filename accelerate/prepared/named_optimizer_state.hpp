// SPDX-License-Identifier: Apache-2.0
// Private: optimizer states whose file identifies parameters by name, as Hugging Face Accelerate writes them under
// FSDP.
#pragma once

#include "accelerate/prepared/accelerator_state.hpp"
#include "accelerate/state/optimizer_state.hpp"

namespace accelerate::prepared {

class OptimizerCore;

/// Renumbers the parameters of `saved` by the names of the prepared models' parameters. FSDP lists them in another
/// order than modules do. A state without names is unchanged.
///
/// \throws Error (data) if the saved and the prepared optimizer differ in groups or parameters.
void number_by_name(AcceleratorState& shared, const OptimizerCore& optimizer, state::OptimizerState& saved);

}  // namespace accelerate::prepared
