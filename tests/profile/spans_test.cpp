// SPDX-License-Identifier: Apache-2.0
#include "accelerate/profile/spans.hpp"

#include "tests/testing.hpp"

using namespace accelerate::profile;

namespace {

Span span(std::string name, int64_t begin, int64_t end, uint64_t thread = 1) {
  return {.name = std::move(name), .thread = thread, .begin = begin, .end = end};
}

}  // namespace

TEST_CASE("self time excludes operators called on the same thread; total time counts nested calls once") {
  const auto summary = summarize({span("outer", 0, 100), span("inner", 10, 40), span("leaf", 20, 30),
                                  span("inner", 50, 60), span("outer", 70, 90), span("leaf", 0, 55, 2)});
  CHECK((summary.operators == std::vector<OperatorTime>{{.name = "leaf", .calls = 2, .self_ns = 65, .total_ns = 65},
                                                        {.name = "outer", .calls = 2, .self_ns = 60, .total_ns = 100},
                                                        {.name = "inner", .calls = 2, .self_ns = 30, .total_ns = 40}}));
}

TEST_CASE("an asynchronous span is not an operator of the thread that started it") {
  auto reduction = span("gloo:all_reduce", 0, 80);
  reduction.is_async = true;
  const auto summary = summarize({reduction, span("aten::mm", 10, 20)});
  REQUIRE(summary.operators.size() == 1);
  CHECK(summary.operators[0].name == "aten::mm");
  CHECK(summary.communication_ns == 80);
}

TEST_CASE("steps, waits for data, communication and its overlap count each time once") {
  const auto summary = summarize({span("ProfilerStep#3", 0, 100), span("ProfilerStep#4", 100, 200),
                                  span(kDataSpan, 0, 10), span(kDataSpan, 100, 120), span("gloo:all_reduce", 30, 60, 2),
                                  span("c10d::allreduce_", 50, 70), span("comm:broadcast", 150, 160, 2),
                                  span("aten::mm", 40, 55), span("aten::add", 55, 58), span("aten::mm", 90, 95)});
  CHECK(summary.steps == 2);
  CHECK(summary.length_ns == 200);
  CHECK(summary.data_wait_ns == 30);
  CHECK(summary.communication_ns == 50);
  CHECK(summary.overlapped_ns == 18);
}

TEST_CASE("with device kernels, communication and overlap are the device's; operators stay the host's") {
  const auto kernel = [](std::string name, int64_t begin, int64_t end, uint64_t stream) {
    auto made = span(std::move(name), begin, end, stream);
    made.on_device = true;
    return made;
  };
  std::vector<Span> spans{span("ProfilerStep#0", 0, 200), span("aten::mm", 0, 5), span("nccl:all_reduce", 5, 9),
                          kernel("void gemm_kernel<float>(int)", 10, 60, 7)};
  const auto no_collective = summarize(spans);  // a host collective (gloo) while kernels ran
  CHECK(no_collective.communication_ns == 4);
  CHECK(no_collective.overlapped_ns == 0);
  spans.push_back(kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 40, 100, 20));
  spans.push_back(kernel("ncclKernel_Broadcast_RING_LL_Sum_int8_t(ncclWorkElem)", 90, 120, 21));
  spans.push_back(kernel("void multi_tensor_apply_kernel<float>()", 95, 100, 7));
  const auto summary = summarize(spans);
  CHECK(summary.communication_ns == 80);
  CHECK(summary.overlapped_ns == 25);
  CHECK(summary.length_ns == 200);
  std::vector<std::string> operators;
  for (const auto& row : summary.operators) operators.push_back(row.name);
  CHECK((operators == std::vector<std::string>{"aten::mm", "nccl:all_reduce"}));
}

TEST_CASE(
    "device time belongs to the operator that started it, not to its callers; the table is sorted by device time") {
  const auto host = [](std::string name, int64_t begin, int64_t end, uint64_t number) {
    auto made = span(std::move(name), begin, end);
    made.number = number;
    return made;
  };
  const auto on_device = [](std::string name, int64_t begin, int64_t end, uint64_t number, bool is_copy = false) {
    return Span{
        .name = std::move(name), .begin = begin, .end = end, .on_device = true, .is_copy = is_copy, .number = number};
  };
  const auto summary =
      summarize({span("ProfilerStep#0", 0, 100'000'000), host("aten::linear", 0, 50'000'000, 1),
                 host("aten::addmm", 0, 10'000'000, 2), host("aten::copy_", 60'000'000, 90'000'000, 3),
                 host("aten::addmm", 90'000'000, 91'000'000, 4), host("cudaLaunchKernel", 5, 9, 0),
                 on_device("gemm", 20'000'000, 40'000'000, 2), on_device("gemm", 91'000'000, 105'000'000, 4),
                 on_device("Memset (Device)", 18'000'000, 20'000'000, 2, true),
                 on_device("Memcpy HtoD", 30'000'000, 60'000'000, 3, true),
                 on_device("of nobody", 60'000'000, 61'000'000, 0), on_device("of one not recorded", 60, 70, 99)});
  // two concurrent streams count once; work after the last step does not count
  CHECK(summary.device_busy_ns == 52'000'010);
  CHECK(
      summary_table(summary, 2) ==
      "1 steps in 100.00 ms: waiting for data 0.0 %, communication 0.0 %, 0.0 % of it while operators computed, device "
      "busy 52.0 %\n"
      "operator                                        calls      self ms   self %     total ms    us a call    device "
      "ms device %\n"
      "aten::addmm                                         2       11.000   13.6 %       11.000       5500.0       "
      "36.000   53.7 %\n"
      "aten::copy_                                         1       30.000   37.0 %       30.000      30000.0       "
      "30.000   44.8 %\n"
      "of no operator: replays of a graph                  -            -        -            -            -        "
      "1.000    1.5 %\n");
  CHECK(summary.device_ns == 67'000'010);
  REQUIRE(summary.operators.size() == 4);
  CHECK(summary.operators[2].name == "aten::linear");
  CHECK(summary.operators[2].device_ns == 0);
  CHECK(summary.communication_ns == 0);
}

TEST_CASE("copies do not count as computation, so they overlap no communication") {
  auto copy = span("Memcpy HtoD", 0, 50);
  copy.on_device = copy.is_copy = true;
  auto reduction = span("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 0, 40);
  reduction.on_device = true;
  const auto summary = summarize({span("ProfilerStep#0", 0, 100), copy, reduction});
  CHECK(summary.communication_ns == 40);
  CHECK(summary.overlapped_ns == 0);
  CHECK(summary.device_busy_ns == 50);
}

TEST_CASE("the table contains the shares and the requested number of the longest operators") {
  auto product = span("aten::mm", 0, 3'000'000);
  product.flops = 6'000'000;
  const auto summary = summarize({span("ProfilerStep#0", 0, 4'000'000), product,
                                  span("aten::add", 3'000'000, 4'000'000), span("gloo:all_reduce", 0, 2'000'000, 2)});
  CHECK(
      summary_table(summary, 1) ==
      "1 steps in 4.00 ms: waiting for data 0.0 %, communication 50.0 %, 100.0 % of it while operators computed, 1.50 "
      "GFLOP/s\n"
      "operator                                        calls      self ms   self %     total ms    us a call        "
      "GFLOP\n"
      "aten::mm                                            1        3.000   50.0 %        3.000       3000.0        "
      "0.006\n");
  auto of_a_device = summary;
  of_a_device.peak_flops_per_s = 6e9;
  CHECK(summary_table(of_a_device, 0).find("1.50 GFLOP/s, MFU 25.0 %\n") != std::string::npos);
  CHECK(summary_table(TraceSummary(), 5) ==
        "0 steps in 0.00 ms: waiting for data 0.0 %, communication 0.0 %, 0.0 % of it while operators computed\n"
        "operator                                        calls      self ms   self %     total ms    us a call\n");
}

TEST_CASE("FLOPs and their share of the device's peak are reported if both are known") {
  auto product = span("aten::mm", 0, 50);
  product.flops = 400;
  auto summary = summarize({span("ProfilerStep#2", 60, 100), span("ProfilerStep#1", 0, 60), product});
  CHECK((summary.step_ns == std::vector<int64_t>{60, 40}));
  CHECK(summary.flops == 400);
  CHECK(summary.flops_per_s() == doctest::Approx(4e9));
  CHECK_FALSE(summary.mfu().has_value());
  summary.peak_flops_per_s = 16e9;
  CHECK(summary.mfu().value() == doctest::Approx(0.25));
  CHECK_FALSE(TraceSummary{.peak_flops_per_s = 1}.mfu().has_value());
}

TEST_CASE("a convolution's backward counts twice its forward's FLOPs, for two gradients") {
  const std::vector<int64_t> grad_output{5, 8, 6, 6}, weight{8, 3, 3, 3};
  const uint64_t forward = 2 * 5 * 8 * 6 * 6 * 3 * 3 * 3;  // a product and a sum
  CHECK(flops_of_convolution_backward(grad_output, weight) == 2 * forward);
  CHECK(flops_of_convolution_backward({}, weight) == 0);
}
