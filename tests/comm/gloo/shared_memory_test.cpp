// SPDX-License-Identifier: Apache-2.0
#include "accelerate/comm/gloo/shared_memory.hpp"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <iterator>
#include <set>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "tests/testing.hpp"

using accelerate::comm::SharedMemory;
using std::chrono::milliseconds;

namespace {

std::filesystem::path shm_file(const std::string& address) { return "/dev/shm" + address.substr(0, address.find(' ')); }

}  // namespace

TEST_CASE("all ranks see the blocks and calls of each rank") {
  const auto first = SharedMemory::create(3);
  REQUIRE(first);
  const auto second = SharedMemory::open(first->address(), 1, 3);
  REQUIRE(second);
  for (const uint32_t round : {0U, 1U}) {
    for (int64_t rank = 0; rank < 3; ++rank) {
      std::fill_n(first->block(rank, round), SharedMemory::kBlockBytes, static_cast<char>(10 * rank + round));
      std::ranges::fill(first->call(rank, round), 10 * rank + round);
    }
  }
  for (const uint32_t round : {2U, 3U}) {
    for (int64_t rank = 0; rank < 3; ++rank) {
      const char expected = static_cast<char>(10 * rank + round % 2);
      const char* const block = second->block(rank, round);
      CHECK(std::count(block, block + SharedMemory::kBlockBytes, expected) == SharedMemory::kBlockBytes);
      for (const int64_t word : second->call(rank, round)) CHECK(word == expected);
    }
  }
}

TEST_CASE("shared memory is opened only on its machine, for its number of ranks, and while it has a name") {
  auto memory = SharedMemory::create(2);
  REQUIRE(memory);
  const std::string address = memory->address();
  CHECK(SharedMemory::open(address, 1, 2));
  CHECK_FALSE(SharedMemory::open(address, 1, 3));
  CHECK_FALSE(SharedMemory::open(address + "0", 1, 2));
  CHECK_FALSE(SharedMemory::open(address.substr(0, address.find(' ')), 1, 2));
  CHECK_FALSE(SharedMemory::open("", 1, 2));
  CHECK(std::filesystem::status(shm_file(address)).permissions() ==
        (std::filesystem::perms::owner_read | std::filesystem::perms::owner_write));
  SUBCASE("unlink() removes the name") { memory->unlink(); }
  SUBCASE("the destructor removes the name") { memory.reset(); }
  CHECK_FALSE(std::filesystem::exists(shm_file(address)));
  CHECK_FALSE(SharedMemory::open(address, 1, 2));
}

TEST_CASE("without enough shared memory nothing is created") {
  const auto names = [] {
    std::set<std::string> found;
    std::error_code ignored;  // other processes remove their files meanwhile
    for (const auto& entry : std::filesystem::directory_iterator("/dev/shm", ignored)) {
      const auto name = entry.path().filename().string();
      if (name.starts_with("accelerate-")) found.insert(name);
    }
    return found;
  };
  const auto before = names();
  const pid_t child = fork();
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{.rlim_cur = 4096, .rlim_max = 4096};
    _exit(setrlimit(RLIMIT_FSIZE, &limit) == 0 && !SharedMemory::create(2) ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  // Files of other tests have a name only while their ranks connect.
  std::vector<std::string> left;
  for (int i = 0; i < 600; ++i) {
    const auto now = names();
    left.clear();
    std::ranges::set_difference(now, before, std::back_inserter(left));
    if (left.empty()) break;
    std::this_thread::sleep_for(milliseconds(100));
  }
  CHECK(left.empty());
}

TEST_CASE("a rank waits for the round of another rank, also beyond the largest number of a round") {
  const auto memory = SharedMemory::create(2);
  REQUIRE(memory);
  const auto other = SharedMemory::open(memory->address(), 1, 2);
  REQUIRE(other);
  CHECK(memory->has_published(1, 0));
  CHECK_FALSE(memory->has_published(1, 1));
  const auto begun = std::chrono::steady_clock::now();
  CHECK_FALSE(memory->wait_for(1, 1, milliseconds(30)));
  CHECK(std::chrono::steady_clock::now() - begun >= milliseconds(30));
  for (const uint32_t before : {uint32_t{0}, uint32_t{0x7fffffff}, uint32_t{0xfffffffe}, uint32_t{0xffffffff}}) {
    CAPTURE(before);
    other->publish(1, before);
    CHECK(memory->wait_for(1, before, milliseconds(0)));
    CHECK_FALSE(memory->has_published(1, before + 1));
    std::jthread publisher([&] {
      std::this_thread::sleep_for(milliseconds(20));  // the other one sleeps meanwhile
      other->publish(1, before + 1);
    });
    CHECK(memory->wait_for(1, before + 1, std::chrono::seconds(60)));
  }
}

TEST_CASE("a rank is alive until its object is destroyed or its process is killed") {
  const auto memory = SharedMemory::create(3);
  REQUIRE(memory);
  CHECK(memory->is_alive(0) == false);  // a lock does not exclude its own owner
  CHECK_FALSE(memory->is_alive(1));
  auto other = SharedMemory::open(memory->address(), 1, 3);
  REQUIRE(other);
  CHECK(memory->is_alive(1));
  CHECK(other->is_alive(0));
  other.reset();
  CHECK_FALSE(memory->is_alive(1));

  const pid_t child = fork();
  if (child == 0) {
    const auto own = SharedMemory::open(memory->address(), 2, 3);
    if (own) own->publish(2, 1);
    pause();
    _exit(0);
  }
  CHECK(memory->wait_for(2, 1, std::chrono::seconds(60)));
  CHECK(memory->is_alive(2));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  CHECK_FALSE(memory->is_alive(2));
}
