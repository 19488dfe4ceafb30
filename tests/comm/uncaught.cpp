// SPDX-License-Identifier: Apache-2.0
// uncaught SCENARIO: an MPI job in which rank 1 ends by an exception or a signal while rank 0 waits for it.
#include <ATen/ops/ones.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>

#include "accelerate/comm/group.hpp"
#include "accelerate/env/process_env.hpp"

namespace {

void on_abort(int /*signal*/) {
  constexpr std::string_view text = "the handler of the program\n";
  static_cast<void>(!::write(STDERR_FILENO, text.data(), text.size()));
  std::_Exit(42);
}

}  // namespace

int main(int, char** argv) {
  const std::string scenario = argv[1];
  if (scenario == "own_handler") std::signal(SIGABRT, on_abort);
  const auto process = accelerate::env::read_process_env(accelerate::env::current_variables());
  const auto group = accelerate::comm::connect(process, {.timeout = std::chrono::seconds(30)});
  group.barrier();
  if (process.rank == 1) {
    if (scenario == "segfault") std::raise(SIGSEGV);
    if (scenario == "error") group.broadcast(at::ones({4}), 9);
    throw std::runtime_error("sample 17 has no label");
  }
  group.barrier();
}
