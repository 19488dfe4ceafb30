// SPDX-License-Identifier: Apache-2.0
#include "accelerate/selftest/checks.hpp"

#include <sstream>
#include <stdexcept>

namespace selftest {
namespace {

std::string shown(const at::Tensor& tensor) {
  constexpr int64_t most = 16;
  std::ostringstream text;
  text << tensor.dtype() << " " << tensor.sizes();
  if (tensor.numel() > most) return text.str();
  text << " {";
  const at::Tensor flat = tensor.flatten().cpu();
  for (int64_t i = 0; i < flat.numel(); ++i) text << (i == 0 ? "" : ", ") << flat[i].item();
  return text.str() + "}";
}

// "": it passed on this rank.
std::string failure_of(const Check& check, accelerate::Accelerator& accelerator) {
  try {
    check.run(accelerator);
    return "";
  } catch (const accelerate::Error& error) {
    if (error.kind() == accelerate::ErrorKind::peer) throw;
    return error.what();
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace

void expect_equal(const at::Tensor& found, const at::Tensor& expected, const std::string& what) {
  const at::Tensor here = expected.to(found.device());
  if (found.scalar_type() == here.scalar_type() && found.sizes() == here.sizes() && found.equal(here)) return;
  throw std::runtime_error(what + " is " + shown(found) + ", expected " + shown(expected));
}

void expect(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error(what);
}

int64_t run_checks(accelerate::Accelerator& accelerator, const std::vector<Check>& checks,
                   const std::function<void(const std::string&)>& say) {
  int64_t failed = 0;
  for (const Check& check : checks) {
    const auto failures = accelerator.gather_object(failure_of(check, accelerator));
    std::string line = "passed  " + check.name;
    for (size_t rank = failures.size(); rank-- > 0;) {
      if (!failures[rank].empty()) line = fmt::format("FAILED  {}: rank {}: {}", check.name, rank, failures[rank]);
    }
    failed += line.starts_with("FAILED") ? 1 : 0;
    if (accelerator.is_main_process()) say(line);
  }
  return failed;
}

}  // namespace selftest
