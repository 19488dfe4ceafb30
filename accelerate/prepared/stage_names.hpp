// SPDX-License-Identifier: Apache-2.0
// Private: names of parameters over all stages of pipelines, and what all stages must have equal.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "accelerate/base/error.hpp"
#include "accelerate/prepared/accelerator_state.hpp"

namespace accelerate::prepared {

/// Returns true if the mesh has several stages.
[[nodiscard]] bool has_pipeline_stages(const AcceleratorState& shared);
/// Returns true on the rank that saves this stage: one rank per stage.
[[nodiscard]] bool is_stage_writer(const AcceleratorState& shared);

/// Returns the names of parameters with their models, such as "model.0/0.weight". A shared parameter has the name of
/// its first use.
std::unordered_map<const void*, std::string> qualified_parameter_names(AcceleratorState& shared);
/// Returns the index of the model and the position in the whole model by name.
std::unordered_map<std::string, std::pair<int64_t, int64_t>> positions_of_names(AcceleratorState& shared);

/// Returns true if the name, or its end after a prefix such as "module.", is a parameter or buffer of a Pipeline.
[[nodiscard]] bool belongs_to_a_stage(AcceleratorState& shared, const std::string& name);
/// The same, if this rank does not have it.
[[nodiscard]] bool belongs_to_other_stage(AcceleratorState& shared, const std::string& name);
/// Returns the name of a parameter on this rank, if another stage has it under the given name, too.
[[nodiscard]] std::string name_here(AcceleratorState& shared, const std::string& name);

/// \throws Error (usage) on all stages if they differ. Collective over the pipeline group.
void check_equal_on_stages(const AcceleratorState& shared, std::string_view operation, std::string_view what,
                           const std::string& text);

template <typename... Args>
[[noreturn]] void refuse_stage(const AcceleratorState& shared, std::string_view operation,
                               fmt::format_string<Args...> format, Args&&... args) {
  base::fail(ErrorKind::usage, shared.place, operation, format, std::forward<Args>(args)...);
}

}  // namespace accelerate::prepared
