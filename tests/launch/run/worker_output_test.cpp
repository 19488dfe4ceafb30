// SPDX-License-Identifier: Apache-2.0
#include "launch/run/worker_output.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "tests/launch/run/pipe.hpp"

using accelerate::base::FileDescriptor;
using accelerate::launch::Output;
using testing::open_pipe;
using testing::read_all;

namespace {

/// Write ends of a worker's streams.
struct Streams {
  FileDescriptor out;
  FileDescriptor err;
};

Streams add_worker(Output& output) {
  auto out = open_pipe();
  auto err = open_pipe();
  output.add(std::move(out.read), std::move(err.read));
  return {std::move(out.write), std::move(err.write)};
}

/// Forwards output as the guardian does, after bytes were written.
void pass_on(Output& output, const FileDescriptor& stream, std::string_view text) {
  REQUIRE(write(stream.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  std::vector<pollfd> waits;
  output.watch(waits);
  REQUIRE(poll(waits.data(), waits.size(), 60'000) > 0);
  output.serve(waits);
}

/// True if the stream still has a reader.
bool is_read(const FileDescriptor& stream) {
  pollfd end{.fd = stream.get(), .events = 0, .revents = 0};
  poll(&end, 1, 0);
  return (end.revents & POLLERR) == 0;
}

/// As in the launcher: write() reports a closed pipe.
class NoSigpipe {
 public:
  NoSigpipe() {
    struct sigaction ignore {};
    ignore.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &ignore, &before_);
  }
  ~NoSigpipe() { sigaction(SIGPIPE, &before_, nullptr); }
  NoSigpipe(const NoSigpipe&) = delete;
  NoSigpipe& operator=(const NoSigpipe&) = delete;

 private:
  struct sigaction before_ {};
};

}  // namespace

TEST_CASE("an exited reader ends a worker with SIGPIPE, except one that is stopping and may be saving") {
  const NoSigpipe no_sigpipe;
  for (const bool told_to_end : {false, true}) {
    CAPTURE(told_to_end);
    auto console = open_pipe();
    const auto err = open_pipe();
    Output output(console.write.get(), err.write.get());
    const auto worker = add_worker(output);
    if (told_to_end) output.expire();
    console.read.reset();
    pass_on(output, worker.out, "saving\n");
    CHECK(is_read(worker.out));  // the signal that ended the reader may still arrive here
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    pass_on(output, worker.out, "saved\n");
    CHECK(is_read(worker.out) == told_to_end);
    CHECK(output.last_lines(0) == "saving\nsaved\n");
  }
}

TEST_CASE("if stdout and stderr are one pipe, the launcher's text never splits a partly read line") {
  const auto console = open_pipe();
  const int room = fcntl(console.write.get(), F_SETPIPE_SZ, 4096);
  REQUIRE(room > 0);
  const std::string line = std::string(static_cast<size_t>(room) + 1000, 'a') + "\n";
  Output output(console.write.get(), console.write.get());
  const auto worker = add_worker(output);
  pass_on(output, worker.out, line);
  std::string text = read_all(console.read.get());
  CHECK(text.size() == static_cast<size_t>(room));
  output.write_message("of ours\n");
  text += read_all(console.read.get());
  CHECK(output.flushed());
  CHECK(text == line + "of ours\n");
}
