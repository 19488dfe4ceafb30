// SPDX-License-Identifier: Apache-2.0
// accelerate_launch [options] program [arguments]
#include <fmt/format.h>

#include <exception>
#include <string>
#include <vector>

#include "launch/launch.hpp"
#include "launch/plan/options.hpp"
#include "launch/runners/relay.hpp"
#include "launch/runners/task.hpp"

// Suppresses sanitizer reports inside libpmix: it closes a pipe on one thread while it writes on another, and leaks a
// few hundred bytes. Only the slow unwinder finds its frames.
#ifdef __SANITIZE_THREAD__
extern "C" const char* __tsan_default_suppressions() { return "race:libpmix.so\n"; }
#endif
#ifdef __SANITIZE_ADDRESS__
extern "C" const char* __lsan_default_suppressions() { return "leak:libpmix.so\n"; }
extern "C" const char* __asan_default_options() { return "fast_unwind_on_malloc=0"; }
#endif

namespace launch = accelerate::launch;

namespace {

int run_launcher(const std::vector<std::string>& arguments) {
  if (!arguments.empty() && arguments.front() == launch::kAgentFlag) return launch::run_agent();
  if (arguments.size() >= 3 && arguments.front() == launch::kRelayFlag) {
    return launch::run_relay({arguments.begin() + 1, arguments.end()});
  }
  if (!arguments.empty() && arguments.front() == launch::kTaskFlag) {
    return launch::run_task(launch::parse_arguments({arguments.begin() + 1, arguments.end()}).options);
  }
  const auto parsed = launch::parse_arguments(arguments);
  if (!parsed.print) return launch::launch(parsed.options);
  fmt::print("{}", *parsed.print);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  launch::open_standard_streams();
  try {
    return run_launcher({argv + 1, argv + argc});
  } catch (const launch::LaunchError& error) {
    fmt::print(stderr, "{}\n", error.what());
    return error.exit_code();
  } catch (const std::exception& error) {
    fmt::print(stderr, "accelerate_launch: {}\n", error.what());
    return 1;
  }
}
