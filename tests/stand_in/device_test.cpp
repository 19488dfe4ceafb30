// SPDX-License-Identifier: Apache-2.0
// Guarantees of the stand-in itself, on which its other tests depend.
#include <ATen/DeviceAccelerator.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "tests/stand_in/support.hpp"

namespace {

using stand_in::device;
using stand_in::Slow;

c10::impl::VirtualGuardImpl guard_impl() { return c10::impl::VirtualGuardImpl(stand_in::kType); }
c10::Stream side_stream() { return guard_impl().getNewStream(device()); }
c10::Stream main_stream() { return guard_impl().getDefaultStream(device()); }

void make_wait(const c10::Stream& waiting, const c10::Stream& other) {
  c10::Event event(stand_in::kType);
  event.record(other);
  event.block(waiting);
}

at::Tensor upload(const at::Tensor& host, const c10::Stream& stream) {
  const c10::StreamGuard guard(stream);
  return host.to(device(), /*non_blocking=*/true);
}

/// True if races were recorded. Clears them for the next case.
bool races() { return !stand_in::detect_races().empty(); }

void synchronize() { at::accelerator::synchronizeDevice(0); }

}  // namespace

TEST_CASE("kernels on the device produce the CPU's bits") {
  const auto a = torch::randn({8, 1, 12, 12});
  const auto weight = torch::randn({4, 1, 3, 3});
  const auto compute = [](const at::Tensor& x, const at::Tensor& w) {
    auto y = torch::relu(torch::conv2d(x, w));
    y = torch::batch_norm(y, {}, {}, {}, {}, true, 0.1, 1e-5, false);
    y = torch::max_pool2d(y, 2).flatten(1);
    return torch::log_softmax(y, 1);
  };
  stand_in::at_every_pace(
      [&] { CHECK(at::equal(compute(a.to(device()), weight.to(device())).cpu(), compute(a, weight))); });
}

TEST_CASE("a consumer that does not wait for the copy stream reads wrong numbers, and a race is reported") {
  const auto host = torch::ones({1000}).pin_memory();
  stand_in::set_delay(60'000, Slow::side);
  CHECK((upload(host, side_stream()) * 2).sum().item<double>() != 2000);
  CHECK(races());
  synchronize();
  stand_in::set_delay(0);
  stand_in::detect_races();
  const auto sum = (upload(host, side_stream()) * 2).sum();
  CHECK(races());  // without any delay
  synchronize();
}

TEST_CASE("a side stream that does not wait for the compute stream reads wrong numbers, and a race is reported") {
  stand_in::set_delay(60'000, Slow::main);
  const auto x = torch::ones({1000}, device()) * 2;
  const auto side = side_stream();
  {
    const c10::StreamGuard guard(side);
    CHECK((x + 0).sum().item<double>() != 2000);
  }
  CHECK(races());
  stand_in::set_delay(0);
  synchronize();
  stand_in::detect_races();
}

TEST_CASE("events order streams without blocking the host") {
  const auto host = torch::ones({1000}).pin_memory();
  stand_in::at_every_pace([&] {
    const auto side = side_stream();
    const auto waits = stand_in::host_waits(0);
    const auto x = upload(host, side);
    make_wait(main_stream(), side);
    x.record_stream(main_stream());
    const auto sum = (x * 2).sum();
    CHECK(stand_in::host_waits(0) == waits);
    CHECK(sum.item<double>() == 2000);
  });
}

TEST_CASE("memory that is freed while another stream reads it is a race unless it was recorded there") {
  const auto host = torch::ones({1000}).pin_memory();
  for (const bool recorded : {false, true}) {
    CAPTURE(recorded);
    const auto side = side_stream();
    auto x = upload(host, side);
    make_wait(main_stream(), side);
    const auto y = x + 1;
    if (recorded) x.record_stream(main_stream());
    x.reset();
    CHECK(races() == !recorded);
    synchronize();
  }
}

TEST_CASE("the trace contains which job waits for which") {
  const auto side = side_stream();
  stand_in::start_trace();
  const auto x = torch::ones({4}, device());
  const auto before = x + 1;
  make_wait(side, main_stream());
  {
    const c10::StreamGuard guard(side);
    static_cast<void>(x * 2);
  }
  const auto later = x - 1;
  const auto trace = stand_in::take_trace();
  const auto find = [&](const std::string& what) {
    const auto found = std::find_if(trace.begin(), trace.end(), [&](const auto& job) { return job.what == what; });
    REQUIRE(found != trace.end());
    return *found;
  };
  const auto sum = find("aten::add.out");
  const auto product = find("aten::mul.out");
  const auto difference = find("aten::sub.out");
  CHECK(product.side);
  CHECK_FALSE(sum.side);
  CHECK(stand_in::ordered(sum, product));
  CHECK(stand_in::ordered(sum, difference));
  CHECK_FALSE(stand_in::ordered(product, difference));
  synchronize();
  stand_in::detect_races();
}

TEST_CASE("waits of the host are counted as in CUDA") {
  const auto x = torch::full({16}, 2.0, device());
  const auto count = [](const std::function<void()>& body) {
    const auto before = stand_in::host_waits(0);
    body();
    return stand_in::host_waits(0) - before;
  };
  CHECK(count([&] { static_cast<void>(x.sum().item<double>()); }) == 1);
  CHECK(count([&] { static_cast<void>(x.cpu()); }) == 1);
  CHECK(count([&] { static_cast<void>(torch::ones({4}).to(device())); }) == 1);
  CHECK(count([&] { static_cast<void>(torch::ones({4}).to(device(), /*non_blocking=*/true)); }) == 0);
  CHECK(count([&] { static_cast<void>(x.to(at::kCPU, /*non_blocking=*/true)); }) == 0);
  CHECK(count([&] { static_cast<void>(at::nonzero(x)); }) == 1);
  CHECK(count([&] { static_cast<void>(torch::relu(x + 1).sum()); }) == 0);
  CHECK(count([] { synchronize(); }) == 1);
}

TEST_CASE("new memory is poisoned, and the host cannot read the device's memory") {
  const auto x = torch::empty({4}, device());
  CHECK(x.isnan().all().item<bool>());
  const auto child = ::fork();
  if (child == 0) {
    std::signal(SIGSEGV, SIG_DFL);
    std::_Exit(x.data_ptr<float>()[0] == 2 ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK(WIFSIGNALED(status));
}

TEST_CASE("out of memory is LibTorch's error, and the device continues after it") {
  stand_in::set_limit(0, size_t{64} << 20);
  CHECK_THROWS_AS(static_cast<void>(torch::zeros({int64_t{32} << 20}, device())), c10::OutOfMemoryError);
  stand_in::set_limit(0, size_t{256} << 20);
  CHECK(torch::ones({4}, device()).sum().item<double>() == 4);
}

TEST_CASE("tensors of two devices in one operation are an error that names both") {
  const auto message = [](const std::function<void()>& call) -> std::string {
    try {
      call();
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    }
    return "no error";
  };
  const auto here = torch::ones({4}, device(0));
  CHECK(message([&] { static_cast<void>(here + torch::ones({4})); })
            .starts_with("Expected all tensors to be on the same device, but found at least two devices, standin:0 and "
                         "cpu!"));
  CHECK(message([&] { static_cast<void>(torch::ones({4}) + here); }).find("standin:0 and cpu!") != std::string::npos);
  CHECK(message([&] { static_cast<void>(here + torch::ones({4}, device(1))); }).find("standin:0 and standin:1!") !=
        std::string::npos);
  CHECK((here + torch::tensor(1.0)).sum().item<double>() == 8);  // scalars may be on the host
}

TEST_CASE("the next wait throws a kernel's error") {
  const auto bad =
      torch::ones({4}, device()).gather(0, torch::full({1}, 9, at::TensorOptions(device()).dtype(at::kLong)));
  CHECK_THROWS_AS(static_cast<void>(bad.cpu()), c10::Error);
}

TEST_CASE("the device has its own seeds, dropout and generator state") {
  const auto draw = [] { return torch::dropout(torch::ones({100}, device()), 0.5, true).cpu(); };
  torch::manual_seed(5);
  const auto first = draw();
  auto generator = at::globalContext().defaultGenerator(device());
  const auto state = generator.get_state();
  const auto second = draw();
  torch::manual_seed(5);
  static_cast<void>(torch::randn({7}));  // the CPU generator has no effect
  CHECK(at::equal(draw(), first));
  CHECK_FALSE(at::equal(first, second));
  generator.set_state(state);
  CHECK(at::equal(draw(), second));
}

TEST_CASE("training needs no shape for which the host would have to wait") {
  torch::nn::Sequential net(torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 4, 3).padding(1)), torch::nn::BatchNorm2d(4),
                            torch::nn::ReLU(), torch::nn::Flatten(), torch::nn::Linear(4 * 8 * 8, 10));
  net->to(device());
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  const auto images = torch::randn({4, 1, 8, 8}, device());
  const auto labels = torch::zeros({4}, at::TensorOptions(device()).dtype(at::kLong));
  for (int step = 0; step < 3; ++step) {
    sgd.zero_grad();
    torch::nn::functional::cross_entropy(net->forward(images), labels).backward();
    sgd.step();
  }
  CHECK(stand_in::synchronous_operators() == std::vector<std::string>{});
  CHECK(stand_in::detect_races() == stand_in::kNoRaces);
}
