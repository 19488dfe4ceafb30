// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.hpp"
//
#include <atomic>
#include <sstream>
#include <thread>

#include "accelerate/device/absent_memory.hpp"
#include "accelerate/sharding/whole_unit.hpp"
#include "tests/refusal.hpp"

using accelerate::comm::Group;
using accelerate::comm::run_threads;
using accelerate::sharding::UseOrder;
using accelerate::sharding::WholeUnit;
using testing::refusal;

namespace {

/// A unit of two parameters of 8 elements each. On two ranks each owns one of them.
struct Unit {
  explicit Unit(const Group& the_group, int64_t index = 0) : group(the_group) {
    unit = std::make_shared<WholeUnit>(index, "unit " + std::to_string(index) + " (a and 1 more)", group,
                                       std::make_shared<UseOrder>());
    unit->adopt(torch::zeros({16}), {{"a", a, 0}, {"b", b, 8}});
  }
  /// Steps on this rank's part, and sends it.
  void step(double value) {
    unit->part().fill_(value + static_cast<double>(group.rank()));
    unit->start_exchange();
  }
  void check(double value) const {
    CHECK(a.detach().equal(torch::full({8}, value)));
    CHECK(b.detach().equal(torch::full({2, 4}, value + 1)));
  }

  Group group;
  torch::Tensor a = torch::zeros({8}).requires_grad_(true), b = torch::zeros({2, 4}).requires_grad_(true);
  std::shared_ptr<WholeUnit> unit;
};

/// Rank 0 calls `during` while rank 1 has not sent its part, then rank 1 sends it.
void while_pending(const std::function<void(Unit&)>& during, const std::function<void(Unit&)>& after) {
  std::atomic<bool> is_done = false;
  run_threads(2, [&](const Group& group) {
    Unit unit(group);
    if (group.rank() == 0) {
      unit.step(5);
      during(unit);
      is_done = true;
      after(unit);
      unit.check(5);
    } else {
      while (!is_done) std::this_thread::yield();
      unit.step(5);
      unit.check(5);
    }
  });
}

}  // namespace

TEST_CASE("an operator waits for the exchange of its unit only") {
  std::atomic<bool> used_first = false;
  run_threads(2, [&](const Group& group) {
    Unit first(group), second(group, 1);
    first.step(3);
    if (group.rank() == 1) {
      while (!used_first) std::this_thread::yield();
    }
    second.step(7);
    if (group.rank() == 0) {
      first.check(3);
      used_first = true;
    }
    second.check(7);
  });
}

TEST_CASE("code that reads memory without an operator is refused until the values arrived") {
  const std::string text =
      " is on its way from the ranks that stepped on it, and only operators wait for it; before data_ptr() or "
      "torch::save(), call summon_full_params(model)";
  const auto refuses = [&](const auto& call, const std::string& parameter) {
    const auto error = refusal<c10::Error>(call);
    CHECK_MESSAGE(error.find("parameter " + parameter + text) != std::string::npos, error);
  };
  while_pending(
      [&](Unit& unit) {
        refuses([&] { (void)unit.a.const_data_ptr(); }, "a");
        refuses([&] { (void)unit.b.mutable_data_ptr(); }, "b");
        refuses([&] { (void)unit.b.detach().const_data_ptr(); }, "b");
        std::ostringstream file;
        refuses([&] { torch::save(unit.a, file); }, "a");
        CHECK(unit.a.sizes() == at::IntArrayRef({8}));  // shapes, views and gradients need no memory
        CHECK(unit.b.view({8}).transpose(0, 0).numel() == 8);
        CHECK_FALSE(unit.a.grad().defined());
        CHECK(torch::zeros_like(unit.b).equal(torch::zeros({2, 4})));
      },
      [](Unit& unit) {
        unit.unit->finish_exchange();
        CHECK(unit.a.const_data_ptr<float>()[7] == 5);
        CHECK(unit.b.mutable_data_ptr<float>()[0] == 6);
      });
}

TEST_CASE("every operator waits, also on views from before the step, on copies and in prints") {
  using Read = std::function<torch::Tensor(Unit&)>;
  const auto kept = [](const torch::Tensor& tensor) { return tensor; };
  for (const Read& read : std::vector<Read>{[&](Unit& unit) { return kept(unit.b.data()); },
                                            [&](Unit& unit) { return unit.b.detach().clone(); },
                                            [](Unit& unit) {
                                              return unit.b.view({4, 2}).t().reshape({2, 4});
                                            },
                                            [](Unit& unit) {
                                              return torch::cat({unit.a, unit.b.flatten()}).slice(0, 8).view({2, 4});
                                            },
                                            [](Unit& unit) {
                                              return torch::full({2, 4}, unit.b[1][2].item<float>());
                                            },
                                            [](Unit& unit) {
                                              std::ostringstream text;
                                              text << unit.b;
                                              CHECK(text.str().find("6  6  6  6") != std::string::npos);
                                              return unit.b.detach();
                                            },
                                            [](Unit& unit) {
                                              const torch::NoGradGuard no_grad;
                                              unit.b.mul_(2);
                                              return unit.b.div_(2).detach();
                                            },
                                            [](Unit& unit) {
                                              accelerate::device::require_data(unit.b);
                                              return torch::from_blob(unit.b.data_ptr(), {2, 4}).clone();
                                            }}) {
    run_threads(2, [&](const Group& group) {
      Unit unit(group);
      const auto view = unit.b.detach()[1];
      unit.step(5);
      CHECK(read(unit).detach().equal(torch::full({2, 4}, 6.0)));
      CHECK(view.equal(torch::full({4}, 6.0)));
      unit.step(5);
      CHECK(view.equal(torch::full({4}, 6.0)));
      unit.check(5);
    });
  }
}

TEST_CASE("collectives on a parameter wait for its values") {
  run_threads(2, [](const Group& group) {
    Unit unit(group);
    unit.step(5);
    const torch::NoGradGuard no_grad;
    CHECK(group.all_gather(unit.b.flatten()).equal(torch::full({16}, 6.0)));
    unit.step(5);
    group.all_reduce(unit.a);
    CHECK(unit.a.equal(torch::full({8}, 10.0)));
  });
}

TEST_CASE("threads that use a unit at the same time all wait") {
  run_threads(2, [](const Group& group) {
    Unit unit(group);
    for (int step = 1; step < 20; ++step) {
      unit.step(step);
      std::vector<std::thread> threads;
      std::atomic<int> right = 0;
      for (int i = 0; i < 4; ++i) {
        threads.emplace_back([&] { right += unit.b.detach().eq(step + 1).all().item<bool>() ? 1 : 0; });
      }
      for (auto& thread : threads) thread.join();
      CHECK(right == 4);
    }
  });
}

TEST_CASE("a unit that is destroyed before a use waits, and its parameters keep their memory") {
  run_threads(2, [](const Group& group) {
    Unit unit(group);
    unit.step(5);
    unit.unit.reset();
    CHECK(unit.a.const_data_ptr<float>()[0] == 5);
    unit.check(5);
    CHECK_FALSE(accelerate::units::has_memory_owner(unit.a));
  });
}

TEST_CASE("a storage that set_data() replaced joins the flat tensor before a step, unless it does not fit") {
  run_threads(2, [](const Group& group) {
    Unit unit(group);
    unit.step(1);
    unit.a.set_data(torch::full({8}, 9.0));
    unit.b.set_data(torch::full({2, 4}, 9, torch::kDouble));
    unit.unit->finish_exchange();
    unit.unit->adopt_replaced_storages();
    unit.unit->start_exchange();
    CHECK(unit.a.detach().equal(torch::full({8}, 9.0)));
    CHECK(accelerate::units::has_memory_owner(unit.a));
    CHECK_FALSE(accelerate::units::has_memory_owner(unit.b));
    CHECK(unit.b.detach().equal(torch::full({2, 4}, 9, torch::kDouble)));
  });
}

TEST_CASE("a rank that leaves is named with the unit by the first operator and by later ones") {
  run_threads(
      2,
      [](const Group& group) {
        Unit unit(group);
        if (group.rank() == 1) return;
        unit.step(1);
        for (int use = 0; use < 2; ++use) {
          const auto text = refusal([&] { (void)unit.a.sum(); });
          CHECK_MESSAGE(
              text.find("optimizer.step: unit 0 (a and 1 more) is not exchanged after the step: ") != std::string::npos,
              text);
          CHECK_MESSAGE(text.find("rank 1") != std::string::npos, text);
        }
        CHECK_FALSE(refusal<c10::Error>([&] { (void)unit.a.data_ptr(); }).empty());
        unit.unit.reset();
        const auto text = refusal([&] { (void)unit.a.sum(); });
        CHECK_MESSAGE(text.ends_with("parameter a has no values of the last step, because its all-gather failed before "
                                     "the Accelerator ended; load a checkpoint"),
                      text);
      },
      std::chrono::seconds(5));
}
