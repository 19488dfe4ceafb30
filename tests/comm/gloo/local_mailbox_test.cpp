// SPDX-License-Identifier: Apache-2.0
// Ranks are threads with an object each, as processes have.
#include "accelerate/comm/gloo/local_mailbox.hpp"

#include <ATen/ops/arange.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "accelerate/comm/core/connection.hpp"
#include "tests/comm/gloo/shared_memories.hpp"
#include "tests/testing.hpp"

using accelerate::comm::LocalMailbox;
using accelerate::comm::SharedMemory;
using shared_memory_testing::failure_of;
using std::chrono::milliseconds;

namespace {

constexpr int64_t kSlotBytes = int64_t{64} << 10;  // with few ranks
constexpr int64_t kChannelBytes = SharedMemory::kSlots * kSlotBytes;

void with_mailboxes(int64_t ranks, const std::function<void(LocalMailbox&, int64_t)>& test,
                    milliseconds timeout = milliseconds(60'000)) {
  shared_memory_testing::with_shared_memories(ranks, [&](std::shared_ptr<SharedMemory> memory, int64_t rank) {
    std::vector<int64_t> job_ranks;
    for (int64_t i = 0; i < ranks; ++i) job_ranks.push_back(10 + i);
    LocalMailbox mailbox(std::move(memory), rank, job_ranks, timeout);
    test(mailbox, rank);
  });
}

at::Tensor bytes_of_message(int64_t count, int64_t number) {
  return (at::arange(count, at::kLong) * 7 + number).to(at::kByte);
}

/// The next message has these bytes and values.
void check_next(LocalMailbox& mailbox, int64_t from, int64_t tag, int64_t count, int64_t number) {
  const at::Tensor tensor = at::zeros({count}, at::kByte);
  mailbox.receive(tensor, from, tag)->wait(milliseconds(0));
  CHECK(tensor.equal(bytes_of_message(count, number)));
}

void wait_for_flag(const std::atomic<bool>& flag) {
  while (!flag) std::this_thread::sleep_for(milliseconds(1));
}

}  // namespace

TEST_CASE(
    "messages between all pairs of 2 to 5 ranks have their values, for sizes around those of slots and channels") {
  for (const int64_t ranks : {2, 3, 4, 5}) {
    with_mailboxes(ranks, [&](LocalMailbox& mailbox, int64_t rank) {
      for (const int64_t count : {int64_t{0}, int64_t{1}, kSlotBytes - 1, kSlotBytes, kSlotBytes + 1, kChannelBytes,
                                  kChannelBytes + 1, 3 * kChannelBytes + 5}) {
        CAPTURE(ranks);
        CAPTURE(count);
        std::vector<LocalMailbox::WorkPtr> sends;
        for (int64_t other = 0; other < ranks; ++other) {
          if (other != rank) sends.push_back(mailbox.send(bytes_of_message(count, rank + 10 * other), other, 3));
        }
        for (int64_t other = 0; other < ranks; ++other) {
          if (other != rank) check_next(mailbox, other, 3, count, other + 10 * rank);
        }
        for (const auto& send : sends) send->wait(milliseconds(0));
      }
    });
  }
}

TEST_CASE("the dtype of a message is that of its tensors") {
  for (const auto dtype : {at::kDouble, at::kBFloat16, at::kBool, at::kComplexFloat}) {
    const at::Tensor expected = (at::arange(30, at::kLong) % 3).to(dtype).view({5, 6});
    with_mailboxes(2, [&](LocalMailbox& mailbox, int64_t rank) {
      if (rank == 0) return static_cast<void>(mailbox.send(expected, 1, 0));
      const at::Tensor tensor = at::zeros({5, 6}, dtype);
      mailbox.receive(tensor, 0, 0)->wait(milliseconds(0));
      CHECK(tensor.equal(expected));
    });
  }
}

TEST_CASE("messages of one tag keep their order, and a message of another tag waits for its receive") {
  for (const int64_t count : {int64_t{5}, 2 * kChannelBytes}) {
    CAPTURE(count);
    with_mailboxes(2, [&](LocalMailbox& mailbox, int64_t rank) {
      if (rank == 0) {
        for (int64_t number = 0; number < 6; ++number) {
          mailbox.send(bytes_of_message(count, number), 1, number % 2)->wait(milliseconds(0));
        }
        return;
      }
      // Tag 1 is received first, so the messages of tag 0 are kept.
      for (const int64_t number : {1, 3}) check_next(mailbox, 0, 1, count, number);
      for (const int64_t number : {0, 2}) check_next(mailbox, 0, 0, count, number);
      std::vector<at::Tensor> tensors{at::zeros({count}, at::kByte), at::zeros({count}, at::kByte)};
      const auto last = mailbox.receive(tensors[1], 0, 1), before = mailbox.receive(tensors[0], 0, 0);
      before->wait(milliseconds(0));
      last->wait(milliseconds(0));
      CHECK(tensors[0].equal(bytes_of_message(count, 4)));
      CHECK(tensors[1].equal(bytes_of_message(count, 5)));
    });
  }
}

TEST_CASE("a receive takes a message whose first pieces were kept") {
  std::atomic<bool> sent = false, kept = false;
  with_mailboxes(2, [&](LocalMailbox& mailbox, int64_t rank) {
    const int64_t count = 3 * kChannelBytes;
    if (rank == 0) {
      const auto large = mailbox.send(bytes_of_message(count, 1), 1, 1);
      sent = true;
      wait_for_flag(kept);
      large->wait(milliseconds(0));
      mailbox.send(bytes_of_message(2, 2), 1, 2)->wait(milliseconds(0));
      return;
    }
    wait_for_flag(sent);
    const at::Tensor second = at::zeros({2}, at::kByte);
    const auto other = mailbox.receive(second, 0, 2);
    CHECK_FALSE(other->isCompleted());
    const at::Tensor first = at::zeros({count}, at::kByte);
    const auto message = mailbox.receive(first, 0, 1);
    kept = true;
    message->wait(milliseconds(0));
    other->wait(milliseconds(0));
    CHECK(first.equal(bytes_of_message(count, 1)));
    CHECK(second.equal(bytes_of_message(2, 2)));
  });
}

TEST_CASE("a message of another size is an error of its receive, which keeps its tensor, and no other one") {
  for (const int64_t sent : {int64_t{0}, int64_t{12}, 2 * kChannelBytes}) {
    for (const bool is_kept : {false, true}) {
      CAPTURE(sent);
      CAPTURE(is_kept);
      with_mailboxes(2, [&](LocalMailbox& mailbox, int64_t rank) {
        if (rank == 0) {
          mailbox.send(bytes_of_message(sent, 1), 1, 1)->wait(milliseconds(0));
          return mailbox.send(bytes_of_message(9, 2), 1, 2)->wait(milliseconds(0)), void();
        }
        if (is_kept) check_next(mailbox, 0, 2, 9, 2);
        const at::Tensor tensor = at::full({8}, 5, at::kByte);
        CHECK(failure_of([&] { mailbox.receive(tensor, 0, 1)->wait(milliseconds(0)); }) ==
              fmt::format("rank 10 sends {} bytes, this rank expects 8", sent));
        CHECK(tensor.equal(at::full({8}, 5, at::kByte)));
        if (!is_kept) check_next(mailbox, 0, 2, 9, 2);
      });
    }
  }
}

TEST_CASE("a deadline ends the wait for a message") {
  std::atomic<bool> over = false;
  with_mailboxes(2, [&](LocalMailbox& mailbox, int64_t rank) {
    if (rank == 1) return wait_for_flag(over);
    const at::Tensor tensor = at::zeros({2}, at::kByte);
    CHECK(failure_of([&] { mailbox.receive(tensor, 1, 0)->wait(milliseconds(30)); }) == "deadline");
    const auto send = mailbox.send(bytes_of_message(kChannelBytes + 1, 0), 1, 0);
    CHECK(failure_of([&] { send->wait(milliseconds(30)); }) == "deadline");
    CHECK_FALSE(send->isCompleted());
    mailbox.abandon();
    over = true;
  });
}

TEST_CASE("messages of a rank that ended still arrive, and those that it did not send fail") {
  std::atomic<bool> ended = false;
  with_mailboxes(3, [&](LocalMailbox& mailbox, int64_t rank) {
    if (rank == 1) {
      for (int64_t number = 0; number < 3; ++number) mailbox.send(bytes_of_message(100, number), 0, number);
      ended = true;
      return;
    }
    if (rank == 2) return wait_for_flag(ended);
    wait_for_flag(ended);
    check_next(mailbox, 1, 1, 100, 1);
    const at::Tensor tensor = at::zeros({2}, at::kByte);
    const std::string text = "rank 11 has left the group";
    CHECK(failure_of([&] { mailbox.receive(tensor, 1, 7)->wait(milliseconds(0)); }) == text);
    check_next(mailbox, 1, 0, 100, 0);
    check_next(mailbox, 1, 2, 100, 2);
    for (const int64_t count : {int64_t{1}, 2 * kChannelBytes}) {
      CHECK(failure_of([&] { mailbox.send(bytes_of_message(count, 0), 1, 0)->wait(milliseconds(0)); }) == text);
    }
  });
}

TEST_CASE("a rank that leaves in the middle of a message fails its receive") {
  std::atomic<bool> begun = false;
  shared_memory_testing::with_shared_memories(2, [&](std::shared_ptr<SharedMemory> memory, int64_t rank) {
    std::optional<LocalMailbox> mailbox(std::in_place, std::move(memory), rank, std::vector<int64_t>{0, 1},
                                        milliseconds(60'000));
    if (rank == 1) {
      mailbox->send(bytes_of_message(3 * kChannelBytes, 0), 0, 0);
      mailbox->abandon();
      begun = true;
      return;
    }
    wait_for_flag(begun);
    const at::Tensor tensor = at::zeros({3 * kChannelBytes}, at::kByte);
    CHECK(failure_of([&] { mailbox->receive(tensor, 1, 0)->wait(milliseconds(0)); }) == "rank 1 has left the group");
  });
}

TEST_CASE("a rank that is killed fails its messages") {
  auto memory = SharedMemory::create(2);
  REQUIRE(memory);
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const std::shared_ptr<SharedMemory> own = SharedMemory::open(memory->address(), 1, 2);
    if (own) own->publish(1, 1);
    pause();
    _exit(0);
  }
  CHECK(memory->wait_for(1, 1, std::chrono::seconds(60)));
  LocalMailbox mailbox(std::move(memory), 0, {10, 11}, milliseconds(60'000));
  const at::Tensor tensor = at::zeros({2}, at::kByte);
  const auto receive = mailbox.receive(tensor, 1, 0);
  CHECK_FALSE(receive->isCompleted());
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  CHECK(failure_of([&] { receive->wait(milliseconds(0)); }) == "rank 11 has ended");
}

TEST_CASE("ranks leave although each has sent a message that the other one does not receive") {
  const auto begun = std::chrono::steady_clock::now();
  with_mailboxes(3, [](LocalMailbox& mailbox, int64_t rank) {
    mailbox.send(bytes_of_message(2 * kChannelBytes, 0), (rank + 1) % 3, 0);
  });
  CHECK(std::chrono::steady_clock::now() - begun < std::chrono::seconds(30));
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they end a process that allocates too much
TEST_CASE("a message that must be kept and is larger than the memory fails the receives behind it") {
  std::atomic<bool> over = false;
  with_mailboxes(2, [&](LocalMailbox& mailbox, int64_t rank) {
    if (rank == 0) {
      at::Tensor memory = at::zeros({kChannelBytes}, at::kByte);
      mailbox.send(at::from_blob(memory.mutable_data_ptr(), {int64_t{1} << 50}, at::kByte), 1, 1);
      wait_for_flag(over);
      return mailbox.abandon();
    }
    const at::Tensor tensor = at::zeros({2}, at::kByte);
    CHECK(failure_of([&] { mailbox.receive(tensor, 0, 2)->wait(milliseconds(0)); }) ==
          "cannot allocate 1125899906842624 bytes for an earlier message with tag 1; post its receive first");
    over = true;
  });
}
#endif

TEST_CASE("a message keeps its memory, and releases it where its owner may use the mailbox") {
  with_mailboxes(2, [](LocalMailbox& mailbox, int64_t rank) {
    const int64_t count = 2 * kChannelBytes;
    if (rank == 1) {
      check_next(mailbox, 0, 0, count, 0);
      check_next(mailbox, 0, 1, count, 1);
      return;
    }
    at::Tensor first = bytes_of_message(count, 0);
    const auto message = mailbox.send(first, 1, 0);
    first.set_(at::zeros({1}, at::kByte));
    std::atomic<bool> released = false;
    at::Tensor second = bytes_of_message(count, 1);
    mailbox.send(at::from_blob(
                     second.mutable_data_ptr(), {count},
                     [&](void*) {
                       CHECK(message->isCompleted());
                       released = true;
                     },
                     at::kByte),
                 1, 1);
    message->wait(milliseconds(0));
    wait_for_flag(released);
  });
}

TEST_CASE("16 ranks have smaller slots, and the counters of slots may overflow") {
  const auto first = std::shared_ptr(SharedMemory::create(16));
  REQUIRE(first);
  CHECK(first->slot_bytes() < kSlotBytes);
  const auto last = std::shared_ptr(SharedMemory::open(first->address(), 15, 16));
  REQUIRE(last);
  for (const auto& channel : {&first->channel(0, 15), &first->channel(15, 0)}) {
    channel->filled.set(0x7fffffff);
    channel->filled.set(0xfffffffe);
    channel->emptied.set(0x7fffffff);
    channel->emptied.set(0xfffffffe);
  }
  first->doorbell(0).set(0xffffffff);
  std::vector<std::jthread> threads;
  for (const int64_t rank : {0, 15}) {
    threads.emplace_back([rank, memory = rank == 0 ? first : last] {
      LocalMailbox mailbox(memory, rank, std::vector<int64_t>(16), milliseconds(60'000));
      for (int64_t number = 0; number < 3; ++number) {
        const auto send = mailbox.send(bytes_of_message(100'000, number), 15 - rank, 0);
        check_next(mailbox, 15 - rank, 0, 100'000, number);
        send->wait(milliseconds(0));
      }
    });
  }
}

TEST_CASE("a message that nobody waits for is transferred") {
  const int64_t count = 5 * kChannelBytes;
  std::atomic<bool> received = false;
  SUBCASE("a receive, while its rank does something else") {
    with_mailboxes(2, [&](LocalMailbox& mailbox, int64_t rank) {
      if (rank == 0) {
        mailbox.send(bytes_of_message(count, 0), 1, 0)->wait(milliseconds(0));
        received = true;
        return;
      }
      const at::Tensor tensor = at::zeros({count}, at::kByte);
      const auto message = mailbox.receive(tensor, 0, 0);
      wait_for_flag(received);
      message->wait(milliseconds(0));
      CHECK(tensor.equal(bytes_of_message(count, 0)));
    });
  }
  SUBCASE("a send with a dropped handle and tensor, while its rank does something else") {
    with_mailboxes(2, [&](LocalMailbox& mailbox, int64_t rank) {
      if (rank == 0) {
        mailbox.send(bytes_of_message(count, 0), 1, 0);
        return wait_for_flag(received);
      }
      check_next(mailbox, 0, 0, count, 0);
      received = true;
    });
  }
  SUBCASE("a send of an object that is destroyed") {
    with_mailboxes(2, [&](LocalMailbox& mailbox, int64_t rank) {
      if (rank == 0) return static_cast<void>(mailbox.send(bytes_of_message(count, 0), 1, 0));
      std::this_thread::sleep_for(milliseconds(50));
      check_next(mailbox, 0, 0, count, 0);
    });
  }
  SUBCASE("a message after a pause, for which the thread has to wake") {
    with_mailboxes(2, [&](LocalMailbox& mailbox, int64_t rank) {
      for (int round = 0; round < 2; ++round) {
        if (rank == 0) {
          mailbox.send(bytes_of_message(count, round), 1, 0)->wait(milliseconds(0));
          received = true;
          continue;
        }
        std::this_thread::sleep_for(milliseconds(300));
        received = false;
        const at::Tensor tensor = at::zeros({count}, at::kByte);
        const auto message = mailbox.receive(tensor, 0, 0);
        wait_for_flag(received);
        message->wait(milliseconds(0));
        CHECK(tensor.equal(bytes_of_message(count, round)));
      }
    });
  }
}

TEST_CASE("polling and futures complete messages") {
  with_mailboxes(2, [&](LocalMailbox& mailbox, int64_t rank) {
    const int64_t count = 2 * kChannelBytes;
    if (rank == 0) {
      const auto send = mailbox.send(bytes_of_message(count, 0), 1, 0);
      while (!send->isCompleted()) std::this_thread::yield();
      CHECK(send->isSuccess());
      return;
    }
    const at::Tensor tensor = at::zeros({count}, at::kByte);
    const auto receive = mailbox.receive(tensor, 0, 0);
    CHECK(receive->getFuture()->value().toTensorVector().at(0).equal(bytes_of_message(count, 0)));
    CHECK(receive->isSuccess());
    const auto failed = mailbox.receive(tensor, 0, 0)->getFuture();
    CHECK(failed->hasError());
  });
}

TEST_CASE("a thread that waits for a message ends when another one abandons the mailbox") {
  std::atomic<bool> over = false;
  with_mailboxes(2, [&](LocalMailbox& mailbox, int64_t rank) {
    if (rank == 1) return wait_for_flag(over);
    const at::Tensor tensor = at::zeros({2}, at::kByte);
    const auto receive = mailbox.receive(tensor, 1, 0);
    std::jthread waiting(
        [&] { CHECK(failure_of([&] { receive->wait(milliseconds(0)); }) == "an earlier operation was abandoned"); });
    std::this_thread::sleep_for(milliseconds(50));
    mailbox.abandon();
    over = true;
  });
}

TEST_CASE("an abandoned mailbox ends its messages at once") {
  std::atomic<bool> over = false;
  with_mailboxes(2, [&](LocalMailbox& mailbox, int64_t rank) {
    if (rank == 1) return wait_for_flag(over);
    const at::Tensor tensor = at::zeros({2}, at::kByte);
    const auto before = mailbox.receive(tensor, 1, 0);
    mailbox.abandon();
    const auto after = mailbox.send(tensor, 1, 0);
    for (const auto& message : {before, after}) {
      CHECK(message->isCompleted());
      CHECK_FALSE(message->isSuccess());
      CHECK(failure_of([&] { message->wait(milliseconds(0)); }) == "an earlier operation was abandoned");
    }
    over = true;
  });
}

TEST_CASE("a rank exchanges no message with itself or a rank that does not exist") {
  with_mailboxes(2, [&](LocalMailbox& mailbox, int64_t rank) {
    const at::Tensor tensor = at::zeros({2}, at::kByte);
    for (const int64_t other : {rank, int64_t{-1}, int64_t{2}}) {
      const auto text = fmt::format("rank {} of 2 cannot exchange a message with rank {}", rank, other);
      CHECK(failure_of([&] { mailbox.send(tensor, other, 0); }).starts_with(text));
      CHECK(failure_of([&] { mailbox.receive(tensor, other, 0); }).starts_with(text));
    }
    CHECK(failure_of([&] {
            mailbox.send(tensor, 1 - rank, -1);
          }).starts_with("the tag of a message is -1, must not be negative"));
  });
}

TEST_CASE("threads of a rank exchange messages at the same time") {
  with_mailboxes(3, [&](LocalMailbox& mailbox, int64_t rank) {
    std::vector<std::jthread> threads;
    for (int64_t tag = 0; tag < 4; ++tag) {
      threads.emplace_back([&mailbox, rank, tag] {
        for (int64_t round = 0; round < 20; ++round) {
          const int64_t count = 1 + (round % 5) * kChannelBytes / 2;
          const auto send = mailbox.send(bytes_of_message(count, tag + round), (rank + 1) % 3, tag);
          check_next(mailbox, (rank + 2) % 3, tag, count, tag + round);
          send->wait(milliseconds(0));
        }
      });
    }
  });
}
