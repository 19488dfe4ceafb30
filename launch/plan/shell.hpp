// SPDX-License-Identifier: Apache-2.0
// Words and plans as a shell reads them. Only for people and for ssh's remote side: here no shell is ever given a
// user's text.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "launch/plan/plan.hpp"

namespace accelerate::launch {

/// The word so that any shell takes it as one and as it is: as it stands, else in single quotes.
std::string for_shell(std::string_view word);
std::string for_shell(const std::vector<std::string>& words);

/// The plan as a script that starts the same processes and ends with the exit code of the first rank that failed.
///
/// plan        without a job's id: the script draws one
/// inherited   the launcher's environment: what differs from it is written out
/// folder      where the ranks run
std::string as_script(const LaunchPlan& plan, const env::Variables& inherited, std::string_view folder);

}  // namespace accelerate::launch
