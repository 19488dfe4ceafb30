// SPDX-License-Identifier: Apache-2.0
// Checks that all ranks run together, and what rank 0 says of them.
#pragma once

#include <accelerate/accelerate.hpp>
#include <functional>
#include <string>
#include <vector>

namespace selftest {

/// run   on every rank; throws where a result is not what it should be, and asks of the group the same on all ranks
struct Check {
  std::string name;
  std::function<void(accelerate::Accelerator&)> run;
};

/// Throws unless both have the same dtype, shape and values; what is the name in the message.
void expect_equal(const at::Tensor& found, const at::Tensor& expected, const std::string& what);
void expect(bool holds, const std::string& what);

/// Runs them one after another on every rank. A check that fails on some ranks does not keep the others from running,
/// unless the ranks no longer talk.
///
/// say       is called on rank 0 with each line: "passed  broadcast", "FAILED  all_gather: rank 1: ..."
/// returns   how many failed, the same on all ranks
/// Throws Error (peer) where the group broke.
int64_t run_checks(accelerate::Accelerator& accelerator, const std::vector<Check>& checks,
                   const std::function<void(const std::string&)>& say);

std::vector<Check> collectives();
std::vector<Check> training();

}  // namespace selftest
