// SPDX-License-Identifier: Apache-2.0
// Quotes words and plans for shells. Used only for display and for the remote side of ssh; locally, no user text is
// passed to a shell.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "launch/plan/plan.hpp"

namespace accelerate::launch {

/// Quotes the word for any shell: unchanged if it needs no quoting, otherwise in single quotes.
std::string for_shell(std::string_view word);
std::string for_shell(const std::vector<std::string>& words);

/// Returns the plan as a script that starts the same processes and exits with the exit code of the first failed rank.
///
/// \param plan       Plan without a job id; the script generates one.
/// \param inherited  The launcher's environment; variables that differ from it are written out.
/// \param folder     Working folder of the ranks.
std::string as_script(const LaunchPlan& plan, const env::Variables& inherited, std::string_view folder);

}  // namespace accelerate::launch
