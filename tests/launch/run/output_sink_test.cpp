// SPDX-License-Identifier: Apache-2.0
#include "launch/run/output_sink.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <string>

#include "tests/launch/run/pipe.hpp"

using accelerate::base::FileDescriptor;
using accelerate::launch::Sink;
using testing::open_pipe;
using testing::read_all;

namespace {

/// Reads slowly until all bytes have arrived.
std::string drain(Sink& sink, int fd) {
  std::string text;
  do {
    text += read_all(fd);
    sink.flush();
  } while (!sink.empty());
  return text + read_all(fd);
}

}  // namespace

TEST_CASE("unread output is stored, and all of it arrives") {
  const auto pipe = open_pipe();
  Sink sink(pipe.write.get(), "stdout");
  std::string sent;
  for (int i = 0; i < 200; ++i) sent += std::to_string(i) + std::string(5000, 'x') + "\n";
  sink.add(sent);
  CHECK_FALSE(sink.empty());
  sink.add("end\n");
  CHECK(drain(sink, pipe.read.get()) == sent + "end\n");
  CHECK_FALSE(sink.take_failure());
  CHECK_FALSE(sink.unread());
}

TEST_CASE("other writers of the pipe keep their blocking mode") {
  const auto pipe = open_pipe();
  const Sink sink(pipe.write.get(), "stdout");
  CHECK((fcntl(pipe.write.get(), F_GETFL) & O_NONBLOCK) == 0);
}

TEST_CASE("a socket is written without blocking too") {
  std::array<int, 2> ends{};
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) == 0);
  const FileDescriptor reader(ends[0]);
  const FileDescriptor writer(ends[1]);
  fcntl(reader.get(), F_SETFL, O_NONBLOCK);
  Sink sink(writer.get(), "stdout");
  const std::string sent(3'000'000, 'x');
  sink.add(sent);
  CHECK_FALSE(sink.empty());
  CHECK(drain(sink, reader.get()) == sent);
}

TEST_CASE("a full sink reports it; with dropping enabled it stays within its limit and counts the lost bytes") {
  const auto pipe = open_pipe();
  Sink sink(pipe.write.get(), "stdout");
  const std::string megabyte(1 << 20, 'x');
  while (!sink.full()) sink.add(megabyte);
  sink.drop_beyond_limit();
  sink.add(megabyte);
  sink.add(megabyte);
  const size_t came = drain(sink, pipe.read.get()).size();
  CHECK(came <= Sink::kLimitBytes + megabyte.size() + 65536);
  CHECK(sink.unread() == "accelerate_launch: the last 2097152 bytes for stdout are lost: no process read them\n");
}

TEST_CASE("a full disk is reported once, and later output is attempted again") {
  const FileDescriptor full(open("/dev/full", O_WRONLY | O_CLOEXEC));
  REQUIRE(full);
  Sink sink(full.get(), "stdout");
  sink.add("one\n");
  CHECK(sink.take_failure() ==
        "accelerate_launch: stdout cannot be written: No space left on device; the ranks continue, and their output to "
        "it is lost\n");
  sink.add("two\n");
  CHECK_FALSE(sink.take_failure());
  CHECK_FALSE(sink.abandoned());
  CHECK(sink.empty());
}

TEST_CASE("an exited reader is detected and not waited for") {
  auto pipe = open_pipe();
  struct sigaction ignore {};
  struct sigaction before {};
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &ignore, &before);
  Sink sink(pipe.write.get(), "stdout");
  sink.add("read\n");
  pipe.read.reset();
  sink.add("not read\n");
  sigaction(SIGPIPE, &before, nullptr);
  CHECK(sink.abandoned());
  CHECK(sink.empty());
  CHECK_FALSE(sink.take_failure());
}
