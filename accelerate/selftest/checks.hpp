// SPDX-License-Identifier: Apache-2.0
// Checks that all ranks run together, and rank 0's report about them.
#pragma once

#include <accelerate/accelerate.hpp>
#include <functional>
#include <string>
#include <vector>

namespace selftest {

/// `run` is called on every rank, must make the same collective calls on all ranks, and throws for a wrong result.
struct Check {
  std::string name;
  std::function<void(accelerate::Accelerator&)> run;
};

/// \throws unless dtype, shape and values are equal. `what` is the name in the message.
void expect_equal(const at::Tensor& found, const at::Tensor& expected, const std::string& what);
void expect(bool holds, const std::string& what);

/// Runs the checks in order on every rank. A failed check does not stop the following ones unless the group is broken.
///
/// \param say  Called on rank 0 with each line: "passed  broadcast", "FAILED  all_gather: rank 1: ..."
/// \returns the number of failed checks, equal on all ranks.
/// \throws Error (peer) if the group is broken.
int64_t run_checks(accelerate::Accelerator& accelerator, const std::vector<Check>& checks,
                   const std::function<void(const std::string&)>& say);

std::vector<Check> collectives();
std::vector<Check> training();

}  // namespace selftest
