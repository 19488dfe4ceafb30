// SPDX-License-Identifier: Apache-2.0
// Conformance tests for every backend. Every rank knows all inputs and computes the expected result alone. Included at
// the end of a test file that defines ON_EVERY_RANK, which runs a function on each rank of a group, and
// COLLECTIVES_CASE(name), a test case whose name contains the backend: once per backend of a program.

#include <limits>
#include <numeric>

#include "tests/comm/collectives_support.hpp"

namespace {

COLLECTIVES_CASE("all_reduce returns sum, mean, max, min and product of all ranks on every rank") {
  ON_EVERY_RANK([](const Group& group) {
    for (const auto op : {ReduceOp::sum, ReduceOp::mean, ReduceOp::max, ReduceOp::min, ReduceOp::product}) {
      const auto tensor = input_of(group.rank(), {3, 5}, at::kDouble);
      group.all_reduce(tensor, op);
      CHECK(at::allclose(tensor, reduced(group, {3, 5}, at::kDouble, op)));
    }
  });
}

COLLECTIVES_CASE("all_reduce keeps every dtype, and is exact for exact dtypes") {
  ON_EVERY_RANK([](const Group& group) {
    for (const auto dtype : {at::kByte, at::kChar, at::kShort, at::kInt, at::kLong, at::kHalf, at::kBFloat16,
                             at::kFloat, at::kDouble, at::kComplexFloat, at::kComplexDouble}) {
      const auto tensor = input_of(group.rank(), {7}, dtype);
      group.all_reduce(tensor, ReduceOp::sum);
      CHECK((tensor.scalar_type() == dtype));
      CHECK(at::equal(tensor, reduced(group, {7}, dtype, ReduceOp::sum)));
    }
  });
}

COLLECTIVES_CASE("for bool, sum and max are or, product and min are and") {
  ON_EVERY_RANK([](const Group& group) {
    const bool last = group.rank() == group.size() - 1;
    for (const auto op : {ReduceOp::sum, ReduceOp::max, ReduceOp::product, ReduceOp::min}) {
      const auto tensor = torch::tensor({true, false, last, !last});
      group.all_reduce(tensor, op);
      const bool is_or = op == ReduceOp::sum || op == ReduceOp::max;
      const bool alone = group.size() == 1;
      CHECK(at::equal(tensor, torch::tensor({true, false, is_or || alone, is_or && !alone})));
    }
  });
}

COLLECTIVES_CASE("the mean of bfloat16 is the rounded mean") {
  ON_EVERY_RANK([](const Group& group) {
    const auto tensor = at::full({4}, static_cast<double>(group.rank()), at::kBFloat16);
    group.all_reduce(tensor, ReduceOp::mean);
    CHECK(tensor[0].item<double>() == doctest::Approx(static_cast<double>(group.size() - 1) / 2));
  });
}

COLLECTIVES_CASE("all_reduce propagates a NaN of one rank to all") {
  ON_EVERY_RANK([](const Group& group) {
    const auto tensor = at::zeros({2});
    if (group.rank() == group.size() - 1) tensor[1] = std::numeric_limits<float>::quiet_NaN();
    group.all_reduce(tensor, ReduceOp::sum);
    CHECK(at::isnan(tensor).sum().item<int64_t>() == 1);
  });
}

COLLECTIVES_CASE("a large all_reduce has the same bits on every rank") {
  ON_EVERY_RANK([](const Group& group) {
    auto tensor = noise(group.rank(), {100'003});
    group.all_reduce(tensor);
    const auto all = group.all_gather(tensor.view({1, -1}));
    for (int64_t r = 0; r < group.size(); ++r) CHECK(at::equal(all[r], tensor));
    auto expected = noise(0, {100'003}).to(at::kDouble);
    for (int64_t r = 1; r < group.size(); ++r) expected += noise(r, {100'003});
    CHECK(at::allclose(tensor.to(at::kDouble), expected, 1e-4, 1e-5));
  });
}

COLLECTIVES_CASE("an all_reduce of any length and dtype is correct, with the same bits on every rank") {
  ON_EVERY_RANK([](const Group& group) {
    // Lengths around those at which backends change their algorithm (8 KiB, 4 MiB), and lengths that no number of ranks
    // divides.
    for (const int64_t length : {1, 2, 2047, 2048, 2049, 4097, (1 << 20) - 1, 1 << 20, (1 << 20) + 5}) {
      for (const auto dtype : {at::kFloat, at::kBFloat16, at::kLong}) {
        CAPTURE(length);
        const auto tensor = input_of(group.rank(), {length}, dtype);
        group.all_reduce(tensor, ReduceOp::sum);
        CHECK(at::equal(tensor, reduced(group, {length}, dtype, ReduceOp::sum)));
      }
    }
  });
}

COLLECTIVES_CASE("a non-contiguous tensor is changed in place") {
  ON_EVERY_RANK([](const Group& group) {
    const auto whole = at::zeros({4, 6});
    const auto columns = whole.slice(1, 0, 6, 2);
    columns.copy_(input_of(group.rank(), {4, 3}, at::kFloat));
    group.all_reduce(columns);
    CHECK(at::equal(columns, reduced(group, {4, 3}, at::kFloat, ReduceOp::sum)));
    CHECK(whole.slice(1, 1, 6, 2).abs().sum().item<float>() == 0);

    const auto flags = at::zeros({4, 2}, at::kBool);
    flags.select(1, 0).fill_(group.rank() == 0);
    group.all_reduce(flags.select(1, 0));
    CHECK(flags.sum().item<int64_t>() == 4);
    group.broadcast(flags.t(), 0);
    CHECK(flags.sum().item<int64_t>() == 4);
  });
}

COLLECTIVES_CASE("every operation accepts empty tensors") {
  ON_EVERY_RANK([](const Group& group) {
    const auto empty = at::empty({0, 3});
    group.all_reduce(empty);
    group.broadcast(empty);
    group.reduce(empty);
    CHECK(group.all_gather(empty).sizes() == at::IntArrayRef({0, 3}));
    CHECK(group.all_to_all(std::vector<at::Tensor>(static_cast<size_t>(group.size()), empty)).size() ==
          static_cast<size_t>(group.size()));
    CHECK(group.reduce_scatter(empty).sizes() == at::IntArrayRef({0, 3}));
  });
}

COLLECTIVES_CASE("a parameter that requires grad can be reduced and broadcast") {
  ON_EVERY_RANK([](const Group& group) {
    const auto parameter = at::full({2}, static_cast<double>(group.rank() + 1)).requires_grad_();
    group.broadcast(parameter);
    group.all_reduce(parameter);
    CHECK(parameter.requires_grad());
    CHECK(parameter.is_leaf());
    CHECK(parameter[0].item<double>() == doctest::Approx(static_cast<double>(group.size())));
  });
}

COLLECTIVES_CASE("broadcast copies root's tensor to all ranks, for any root") {
  ON_EVERY_RANK([](const Group& group) {
    for (int64_t root = 0; root < group.size(); ++root) {
      for (const auto dtype : {at::kFloat, at::kBool, at::kBFloat16, at::kShort, at::kComplexFloat}) {
        const auto tensor = input_of(group.rank(), {2, 3}, dtype);
        group.broadcast(tensor, root);
        CHECK(at::equal(tensor, input_of(root, {2, 3}, dtype)));
      }
    }
  });
}

COLLECTIVES_CASE("all_gather joins the ranks' rows in rank order") {
  ON_EVERY_RANK([](const Group& group) {
    for (const auto dtype : {at::kFloat, at::kBool, at::kBFloat16, at::kLong}) {
      const auto all = group.all_gather(input_of(group.rank(), {2, 3}, dtype));
      CHECK((all.scalar_type() == dtype));
      CHECK(at::equal(all, rows_of_all(group, [&](int64_t r) { return input_of(r, {2, 3}, dtype); })));
    }
  });
}

COLLECTIVES_CASE("all_gather accepts different first dimensions, zero included") {
  ON_EVERY_RANK([](const Group& group) {
    const auto mine = input_of(group.rank(), {group.rank(), 3}, at::kFloat);
    CHECK(at::equal(group.all_gather(mine), rows_of_all(group, [](int64_t r) {
                      return input_of(r, {r, 3}, at::kFloat);
                    })));
    const auto list = group.all_gather_list(mine);
    CHECK(list.size() == static_cast<size_t>(group.size()));
    for (int64_t r = 0; r < group.size(); ++r) {
      CHECK(at::equal(list[static_cast<size_t>(r)], input_of(r, {r, 3}, at::kFloat)));
    }
  });
}

COLLECTIVES_CASE("all_gather of a scalar counts it as one row") {
  ON_EVERY_RANK([](const Group& group) {
    CHECK(at::equal(group.all_gather(at::scalar_tensor(group.rank(), at::kLong)), at::arange(group.size())));
  });
}

COLLECTIVES_CASE("all_gather accepts a non-contiguous input") {
  ON_EVERY_RANK([](const Group& group) {
    const auto mine = input_of(group.rank(), {3, 2}, at::kFloat).t();
    CHECK(at::equal(group.all_gather(mine), rows_of_all(group, [](int64_t r) {
                      return input_of(r, {3, 2}, at::kFloat).t();
                    })));
  });
}

COLLECTIVES_CASE("gather returns ragged rows on root only") {
  ON_EVERY_RANK([](const Group& group) {
    const int64_t root = group.size() - 1;
    const auto list = group.gather(input_of(group.rank(), {group.rank() + 1, 2}, at::kBFloat16), root);
    if (group.rank() != root) {
      CHECK(list.empty());
      return;
    }
    CHECK(list.size() == static_cast<size_t>(group.size()));
    for (int64_t r = 0; r < group.size(); ++r) {
      CHECK(at::equal(list[static_cast<size_t>(r)], input_of(r, {r + 1, 2}, at::kBFloat16)));
    }
  });
}

COLLECTIVES_CASE("scatter sends root's tensors, with different shapes and dtypes") {
  ON_EVERY_RANK([](const Group& group) {
    const auto piece = [](int64_t r) { return input_of(r, {r + 1, 2}, r % 2 == 0 ? at::kFloat : at::kBool); };
    for (int64_t root = 0; root < group.size(); ++root) {
      std::vector<at::Tensor> pieces;
      for (int64_t r = 0; group.rank() == root && r < group.size(); ++r) pieces.push_back(piece(r));
      CHECK(at::equal(group.scatter(pieces, root), piece(group.rank())));
    }
  });
}

COLLECTIVES_CASE("reduce returns the reduction on root") {
  ON_EVERY_RANK([](const Group& group) {
    for (const auto op : {ReduceOp::sum, ReduceOp::mean, ReduceOp::max}) {
      const int64_t root = group.size() - 1;
      const auto tensor = input_of(group.rank(), {5}, at::kDouble);
      group.reduce(tensor, op, root);
      if (group.rank() == root) CHECK(at::allclose(tensor, reduced(group, {5}, at::kDouble, op)));
    }
  });
}

COLLECTIVES_CASE("reduce_scatter returns each rank's rows of the reduction") {
  ON_EVERY_RANK([](const Group& group) {
    const std::vector<int64_t> sizes{group.size() * 2, 3};
    for (const auto dtype : {at::kDouble, at::kFloat, at::kShort, at::kComplexDouble}) {
      const auto rows = group.reduce_scatter(input_of(group.rank(), sizes, dtype));
      CHECK(at::equal(rows, reduced(group, sizes, dtype, ReduceOp::sum).narrow(0, group.rank() * 2, 2)));
    }
    const auto mean = group.reduce_scatter(input_of(group.rank(), sizes, at::kDouble), ReduceOp::mean);
    CHECK(at::allclose(mean, reduced(group, sizes, at::kDouble, ReduceOp::mean).narrow(0, group.rank() * 2, 2)));
  });
}

COLLECTIVES_CASE("reduce_scatter and all_gather are the halves of all_reduce, also in several slices") {
  ON_EVERY_RANK([](const Group& group) {
    for (const int64_t share : {1, 100, 1'500'000}) {  // one float, the handshake's size, more than a slice of 4 MiB
      const auto input = input_of(group.rank(), {group.size() * share}, at::kFloat);
      const auto whole = input.clone();
      const auto halves = input.clone();
      const auto own = halves.narrow(0, group.rank() * share, share);
      group.all_reduce(whole);
      group.reduce_scatter_async(own, input).wait();
      group.all_gather_async(halves, own).wait();  // the output already contains its own part
      CHECK(at::equal(halves, whole));
      CHECK(at::equal(input, input_of(group.rank(), {group.size() * share}, at::kFloat)));
    }
  });
}

COLLECTIVES_CASE("reduce_scatter can write into this rank's own rows of the input") {
  ON_EVERY_RANK([](const Group& group) {
    for (const int64_t share : {1, 100, 1'500'000}) {
      const auto input = input_of(group.rank(), {group.size() * share}, at::kFloat);
      const auto own = input.narrow(0, group.rank() * share, share);
      group.reduce_scatter_async(own, input).wait();
      CHECK(at::equal(
          own,
          reduced(group, {group.size() * share}, at::kFloat, ReduceOp::sum).narrow(0, group.rank() * share, share)));
    }
  });
}

COLLECTIVES_CASE("the stride of a column with one row or none is ignored") {
  ON_EVERY_RANK([](const Group& group) {
    const int64_t size = group.size();
    for (const int64_t rows : {0, 1, 3}) {
      CAPTURE(rows);
      const auto of = [&](int64_t rank) { return input_of(rank, {rows, 4}, at::kFloat).select(1, 1); };
      const auto mine = of(group.rank());
      REQUIRE((rows == 0 || mine.stride(0) == 4));
      CHECK(at::equal(group.all_gather(mine), rows_of_all(group, of)));
      const auto list = group.gather(mine, 0);
      for (size_t r = 0; r < list.size(); ++r) CHECK(at::equal(list[r], of(static_cast<int64_t>(r))));
      group.broadcast(mine, size - 1);
      CHECK(at::equal(mine, of(size - 1)));
      const std::vector<at::Tensor> pieces(group.rank() == 0 ? static_cast<size_t>(size) : 0, of(0));
      CHECK(at::equal(group.scatter(pieces, 0), of(0)));
      const auto letters = group.all_to_all(std::vector<at::Tensor>(static_cast<size_t>(size), of(group.rank())));
      for (int64_t r = 0; r < size; ++r) CHECK(at::equal(letters[static_cast<size_t>(r)], of(r)));
      const auto all = at::zeros({size * rows, 2}).select(1, 0);
      group.all_gather_async(all, of(group.rank())).wait();
      CHECK(at::equal(all, rows_of_all(group, of)));
      if (size > 1 && group.rank() == 0) group.send(of(0), 1);
      if (size > 1 && group.rank() == 1) {
        const auto into = at::zeros({rows, 4}).select(1, 2);
        group.recv(into, 0);
        CHECK(at::equal(into, of(0)));
      }
    }
  });
}

COLLECTIVES_CASE("max and min propagate NaN on all backends but gloo") {
  ON_EVERY_RANK([](const Group& group) {
    if (group.backend().find("gloo") != std::string::npos) return;  // it may lose one
    for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
      for (const auto op : {ReduceOp::max, ReduceOp::min}) {
        for (int64_t rank = 0; rank < group.size(); ++rank) {
          const auto mine = at::ones({2 * group.size()}, dtype);
          if (group.rank() == rank) mine.fill_(std::numeric_limits<double>::quiet_NaN());
          const auto all = mine.clone();
          group.all_reduce(all, op);
          CHECK(all.isnan().all().item<bool>());
          CHECK(group.reduce_scatter(mine, op).isnan().all().item<bool>());
          group.reduce(mine, op);
          if (group.rank() == 0) CHECK(mine.isnan().all().item<bool>());
        }
      }
    }
  });
}

COLLECTIVES_CASE("rows of a tensor that requires grad are reduced without a graph, also into a parameter") {
  ON_EVERY_RANK([](const Group& group) {
    for (const int64_t share : {2, 5'000}) {  // with the handshake, and after it
      const auto input = input_of(group.rank(), {group.size() * share}, at::kFloat).requires_grad_();
      const auto rows =
          reduced(group, {group.size() * share}, at::kFloat, ReduceOp::sum).narrow(0, group.rank() * share, share);
      const auto reduced_rows = group.reduce_scatter(input);
      CHECK_FALSE(reduced_rows.requires_grad());
      CHECK(at::equal(reduced_rows, rows));
      const auto parameter = at::zeros({share}).requires_grad_();
      group.reduce_scatter_async(parameter, input).wait();
      CHECK((parameter.is_leaf() && parameter.requires_grad()));
      CHECK(at::equal(parameter, rows));
      const auto gathered = at::zeros({group.size() * share}).requires_grad_();
      group.all_gather_async(gathered, parameter).wait();
      CHECK(gathered.is_leaf());
      CHECK(at::equal(gathered, reduced(group, {group.size() * share}, at::kFloat, ReduceOp::sum)));
    }
  });
}

COLLECTIVES_CASE("every operation works in inference mode") {
  ON_EVERY_RANK([](const Group& group) {
    for (const int64_t share : {2, 5'000}) {
      const auto plain = input_of(group.rank(), {group.size() * share}, at::kFloat);
      const c10::InferenceMode inference;
      const auto all = reduced(group, {group.size() * share}, at::kFloat, ReduceOp::sum);
      const auto rows = all.narrow(0, group.rank() * share, share);
      const auto sum = plain.clone();
      group.all_reduce(sum);
      CHECK(at::equal(sum, all));
      const auto own = group.reduce_scatter(plain);
      CHECK(at::equal(own, rows));
      const auto gathered = at::zeros_like(plain);
      group.all_gather_async(gathered, own).wait();
      CHECK(at::equal(gathered, all));
      CHECK(at::equal(group.all_gather(own), all));
    }
  });
}

COLLECTIVES_CASE("a maximal wait timeout works, and means of 8 and 16 bits do not overflow") {
  ON_EVERY_RANK([](const Group& group) {
    const auto sum = input_of(group.rank(), {6}, at::kFloat);
    auto pending = group.all_reduce_async(sum);
    pending.wait(std::chrono::milliseconds::max());
    CHECK(at::equal(sum, reduced(group, {6}, at::kFloat, ReduceOp::sum)));
    const auto small = at::full({3}, 256.0).to(at::kFloat8_e4m3fn);
    group.all_reduce(small, ReduceOp::mean);
    CHECK(at::equal(small.to(at::kFloat), at::full({3}, 256.0)));
    const auto half = at::full({3}, 40'000.0, at::kHalf);
    group.all_reduce(half, ReduceOp::mean);
    CHECK(at::equal(half, at::full({3}, 40'000.0, at::kHalf)));
    const auto pairs = at::full({3}, c10::complex<double>(2, 1), at::kComplexDouble).to(at::kComplexHalf);
    group.all_reduce(pairs, ReduceOp::mean);
    CHECK(at::equal(at::view_as_real(pairs).to(at::kFloat), at::tensor({2.F, 1.F}).expand({3, 2})));
  });
}

COLLECTIVES_CASE("all_to_all sends tensor r to rank r; shapes and dtypes may differ") {
  ON_EVERY_RANK([](const Group& group) {
    const auto letter = [](int64_t from, int64_t to) {
      return input_of(from * 10 + to, {from + to, 2}, to % 2 == 0 ? at::kBool : at::kDouble);
    };
    std::vector<at::Tensor> letters;
    for (int64_t to = 0; to < group.size(); ++to) letters.push_back(letter(group.rank(), to));
    const auto received = group.all_to_all(letters);
    CHECK(received.size() == static_cast<size_t>(group.size()));
    for (int64_t from = 0; from < group.size(); ++from) {
      CHECK(at::equal(received[static_cast<size_t>(from)], letter(from, group.rank())));
    }
  });
}

COLLECTIVES_CASE("send and recv match by sender and tag") {
  ON_EVERY_RANK([](const Group& group) {
    if (group.size() == 1) return;
    if (group.rank() == 0) {
      group.send(at::full({3}, 7.0), 1, 5);
      group.send(at::full({2, 2}, true, at::kBool).t(), 1, 6);
    } else if (group.rank() == 1) {
      const auto numbers = at::zeros({3, 2});
      group.recv(numbers.select(1, 0), 0, 5);
      CHECK(at::equal(numbers.select(1, 0), at::full({3}, 7.0)));
      const auto flags = at::zeros({2, 2}, at::kBool);
      group.recv(flags, 0, 6);
      CHECK(flags.all().item<bool>());
    }
    group.barrier();
  });
}

COLLECTIVES_CASE("asynchronous messages overlap in both directions and match in the order of the calls") {
  ON_EVERY_RANK([](const Group& group) {
    if (group.size() == 1 || group.rank() > 1) return;
    const int64_t peer = 1 - group.rank();
    const auto letter = [](int64_t from, int64_t i) {
      return input_of(from, {2000 * i + 3}, at::kDouble) + static_cast<double>(i);
    };
    std::vector<at::Tensor> received, sent;
    std::vector<accelerate::comm::Pending> pending;
    for (int64_t i = 0; i < 4; ++i) {
      received.push_back(at::zeros({2000 * i + 3, 2}, at::kDouble));
      pending.push_back(group.recv_async(received.back().select(1, 0), peer, i / 2));  // two of each tag, with strides
    }
    for (int64_t i = 0; i < 4; ++i) {
      sent.push_back(letter(group.rank(), i));
      pending.push_back(group.send_async(sent.back(), peer, i / 2));
    }
    for (auto each = pending.rbegin(); each != pending.rend(); ++each) each->wait();  // in any order
    for (int64_t i = 0; i < 4; ++i) {
      const auto& into = received[static_cast<size_t>(i)];
      CHECK(at::equal(into.select(1, 0), letter(peer, i)));
      CHECK(into.select(1, 1).abs().sum().item<double>() == 0);
      CHECK(pending[static_cast<size_t>(i)].done());
    }
    const auto empty = at::zeros({0, 3}), flags = at::zeros({3}, at::kBool);
    auto receives_empty = group.recv_async(empty, peer), receives_flags = group.recv_async(flags, peer);
    auto sends_empty = group.send_async(at::zeros({0, 3}), peer);
    auto sends_flags = group.send_async(at::ones({3}, at::kBool), peer);
    for (auto* each : {&receives_empty, &receives_flags, &sends_empty, &sends_flags}) each->wait();
    CHECK(flags.all().item<bool>());
  });
}

COLLECTIVES_CASE("asynchronous operations may overlap and are waited for in any order") {
  ON_EVERY_RANK([](const Group& group) {
    const auto sum = input_of(group.rank(), {6}, at::kFloat);
    const auto mean = at::full({5000}, static_cast<double>(group.rank()), at::kDouble);
    const auto copy = input_of(group.rank(), {4}, at::kLong);
    const auto gathered = at::zeros({group.size() * 2, 3});
    auto first = group.all_reduce_async(sum);
    auto second = group.all_reduce_async(mean, ReduceOp::mean);
    auto third = group.broadcast_async(copy, group.size() - 1);
    auto fourth = group.all_gather_async(gathered, input_of(group.rank(), {2, 3}, at::kFloat));
    fourth.wait();
    third.wait(std::chrono::seconds(30));
    second.wait();
    first.wait();
    first.wait();  // a second wait has no effect
    CHECK(first.done());
    CHECK(at::equal(sum, reduced(group, {6}, at::kFloat, ReduceOp::sum)));
    CHECK(mean[4999].item<double>() == doctest::Approx(static_cast<double>(group.size() - 1) / 2));
    CHECK(at::equal(copy, input_of(group.size() - 1, {4}, at::kLong)));
    CHECK(at::equal(gathered, rows_of_all(group, [](int64_t r) { return input_of(r, {2, 3}, at::kFloat); })));
  });
}

COLLECTIVES_CASE("a deferred operation runs in order after earlier operations") {
  ON_EVERY_RANK([](const Group& group) {
    for (int round = 0; round < 20; ++round) {
      const auto first = input_of(group.rank(), {3'000}, at::kFloat);
      const auto second = input_of(group.rank(), {5}, at::kFloat);
      auto early = group.all_reduce_async(first);
      auto late = group.all_reduce_async(second, ReduceOp::max, accelerate::comm::Execution::deferred);
      late.wait();
      early.wait();
      CHECK(at::equal(first, reduced(group, {3'000}, at::kFloat, ReduceOp::sum)));
      CHECK(at::equal(second, reduced(group, {5}, at::kFloat, ReduceOp::max)));
    }
  });
}

COLLECTIVES_CASE("a deferred operation runs with the next operation or at its wait") {
  ON_EVERY_RANK([](const Group& group) {
    for (const bool eager : {true, false}) {
      const auto tensor_of = [&](int64_t i) { return input_of(group.rank(), {4 + i}, at::kFloat); };
      const std::vector<at::Tensor> tensors{tensor_of(0), tensor_of(1), tensor_of(2)};
      using accelerate::comm::Execution;
      auto first = group.all_reduce_async(tensors[0], ReduceOp::sum, Execution::deferred);
      auto second = group.all_reduce_async(tensors[1], ReduceOp::sum, Execution::deferred);
      auto third = group.all_reduce_async(tensors[2], ReduceOp::sum, eager ? Execution::eager : Execution::deferred);
      third.wait();
      first.wait();
      second.wait();
      for (int64_t i = 0; i < 3; ++i) {
        CHECK(at::equal(tensors[static_cast<size_t>(i)], reduced(group, {4 + i}, at::kFloat, ReduceOp::sum)));
      }
    }
  });
}

COLLECTIVES_CASE("a deferred operation without a wait runs and does not block the other ranks") {
  ON_EVERY_RANK([](const Group& group) {
    using accelerate::comm::Execution;
    if (group.rank() == 0) {
      static_cast<void>(group.all_reduce_async(at::ones({3}), ReduceOp::sum, Execution::deferred));
      // No operation follows before all other ranks have ended theirs.
      for (int64_t r = 1; r < group.size(); ++r) group.recv(at::zeros({1}), r);
    } else {
      const auto tensor = at::ones({3});
      group.all_reduce(tensor);
      CHECK(tensor[0].item<int64_t>() == group.size());
      group.send(at::ones({1}), 0);
    }
    group.barrier();
  });
}

COLLECTIVES_CASE("conjugate views are sent with their values and received correctly") {
  ON_EVERY_RANK([](const Group& group) {
    const auto of = [](double real, double imaginary) {
      return at::complex(at::full({2}, real, at::kDouble), at::full({2}, imaginary, at::kDouble));
    };
    const auto rank = static_cast<double>(group.rank()), size = static_cast<double>(group.size());
    const auto all = group.all_gather(of(rank, 1).conj());
    for (int64_t r = 0; r < group.size(); ++r) {
      CHECK(at::equal(all.slice(0, 2 * r, 2 * r + 2), of(static_cast<double>(r), -1)));
    }
    const auto under = of(rank, 1);
    group.all_reduce(under.conj());
    CHECK(at::equal(under, of(size * (size - 1) / 2, size)));
    const auto sent = of(rank + 1, 1);
    group.broadcast(sent.conj(), 0);
    CHECK(at::equal(sent, of(1, 1)));
  });
}

COLLECTIVES_CASE("point-to-point messages do not wait for a pending collective") {
  ON_EVERY_RANK([](const Group& group) {
    if (group.size() == 1) return;
    const auto tensor = at::ones({5});
    if (group.rank() == 0) {
      auto pending = group.all_reduce_async(tensor);
      const auto letter = at::zeros({2});
      group.recv(letter, 1);
      CHECK(letter.sum().item<int64_t>() == 2);
      pending.wait();
    } else {
      if (group.rank() == 1) group.send(at::ones({2}), 0);
      group.all_reduce(tensor);
    }
    CHECK(tensor[0].item<int64_t>() == group.size());
  });
}

COLLECTIVES_CASE("done() becomes true without a wait, also for deferred operations") {
  ON_EVERY_RANK([](const Group& group) {
    using accelerate::comm::Execution;
    for (const auto execution : {Execution::eager, Execution::deferred}) {
      auto pending = group.all_reduce_async(at::ones({10}), ReduceOp::sum, execution);
      const auto until = std::chrono::steady_clock::now() + group.timeout();
      auto rows = group.reduce_scatter_async(at::zeros({2}), at::ones({2 * group.size()}));
      // Ranks that poll without pause took the processors from the working ranks: seconds on an oversubscribed machine.
      while (!(pending.done() && rows.done()) && std::chrono::steady_clock::now() < until) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      CHECK(pending.done());
      CHECK(rows.done());
      pending.wait();
      rows.wait();
    }
  });
}

COLLECTIVES_CASE("an operation continues after its handle is destroyed") {
  ON_EVERY_RANK([](const Group& group) {
    static_cast<void>(group.all_reduce_async(at::ones({100})));
    const auto tensor = at::ones({3});
    group.all_reduce(tensor);
    CHECK(tensor[0].item<int64_t>() == group.size());
  });
}

COLLECTIVES_CASE("bytes of any length are gathered and broadcast") {
  ON_EVERY_RANK([](const Group& group) {
    const auto text_of = [](int64_t r) { return std::string(static_cast<size_t>(r), static_cast<char>('a' + r)); };
    const auto all = group.all_gather_bytes(text_of(group.rank()));
    const auto at_root = group.gather_bytes(text_of(group.rank()), 0);
    CHECK(at_root.size() == (group.rank() == 0 ? static_cast<size_t>(group.size()) : 0));
    for (int64_t r = 0; r < group.size(); ++r) {
      CHECK(all[static_cast<size_t>(r)] == text_of(r));
      if (group.rank() == 0) CHECK(at_root[static_cast<size_t>(r)] == text_of(r));
    }
    const std::string with_zero("a\0b", 3);
    CHECK(group.broadcast_bytes(group.rank() == 0 ? with_zero : "other", 0) == with_zero);
    CHECK(group.broadcast_bytes(group.rank() == 0 ? "" : "other", 0).empty());
  });
}

COLLECTIVES_CASE("split() groups the ranks by color and keeps their order") {
  ON_EVERY_RANK([](const Group& group) {
    const int64_t color = group.rank() % 2;
    const auto half = group.split(color);
    CHECK(half.size() == (group.size() + 1 - color) / 2);
    CHECK(half.rank() == group.rank() / 2);
    CHECK(half.place() == group.place());
    CHECK(at::equal(half.all_gather(at::scalar_tensor(group.rank(), at::kLong)), at::arange(color, group.size(), 2)));
    const auto halves_half = half.split(half.rank() == 0 ? 0 : 1);
    const auto tensor = at::ones({1});
    halves_half.all_reduce(tensor);
    CHECK(tensor.item<int64_t>() == halves_half.size());
  });
}

COLLECTIVES_CASE("a duplicate needs no common order of operations with its group") {
  ON_EVERY_RANK([](const Group& group) {
    const auto other = group.duplicate();
    CHECK(other.rank() == group.rank());
    CHECK(other.size() == group.size());
    const auto one = at::ones({2});
    const auto two = at::full({2}, 2.0);
    const bool even = group.rank() % 2 == 0;
    auto first = even ? group.all_reduce_async(one) : other.all_reduce_async(two);
    auto second = even ? other.all_reduce_async(two) : group.all_reduce_async(one);
    first.wait();
    second.wait();
    CHECK(one[0].item<int64_t>() == group.size());
    CHECK(two[0].item<int64_t>() == 2 * group.size());
  });
}

COLLECTIVES_CASE("invalid calls are refused with the value before anything is sent") {
  ON_EVERY_RANK([](const Group& group) {
    const auto here = accelerate::base::prefix(group.place());
    const auto last = group.size() - 1;
    CHECK_THROWS_WITH(
        group.all_reduce(at::ones({2}, at::kLong), ReduceOp::mean),
        (here + "all_reduce: the mean of int64 is not defined; convert the tensor, to float32 for example").c_str());
    CHECK_THROWS_WITH(
        group.all_reduce(at::ones({2}, at::kComplexFloat), ReduceOp::max),
        (here + "all_reduce: the max of complex64 is not defined; convert the tensor, to float32 for example").c_str());
    CHECK_THROWS_WITH(group.broadcast(at::ones({2}), group.size()),
                      fmt::format("{}broadcast: root is {}, must be 0 to {}", here, group.size(), last).c_str());
    CHECK_THROWS_WITH(group.send(at::ones({2}), group.rank()),
                      fmt::format("{}send: to is {}, this rank itself", here, group.rank()).c_str());
    CHECK_THROWS_WITH(
        group.all_to_all({}),
        fmt::format("{}all_to_all: there are 0 tensors, must be one per rank, {}", here, group.size()).c_str());
    CHECK_THROWS_WITH(static_cast<void>(group.all_gather_async(at::ones({group.size() + 1}), at::ones({1}))),
                      fmt::format("{}all_gather: [{}] float32 does not hold {} parts of [1] float32", here,
                                  group.size() + 1, group.size())
                          .c_str());
    if (group.size() > 1) {
      const auto refusal = [&](const std::string& operation) {
        return fmt::format(
            "{}{}: the tensor is Sparse, only dense tensors travel; call to_dense() before, or send its "
            "indices and values",
            here, operation);
      };
      const auto sparse = at::eye(3).to_sparse();
      CHECK_THROWS_WITH(group.broadcast(sparse), refusal("broadcast").c_str());
      CHECK_THROWS_WITH(static_cast<void>(group.all_gather(sparse)), refusal("all_gather").c_str());
      CHECK_THROWS_WITH(static_cast<void>(group.gather(sparse)), refusal("gather").c_str());
      CHECK_THROWS_WITH(
          static_cast<void>(group.all_to_all(std::vector<at::Tensor>(static_cast<size_t>(group.size()), sparse))),
          refusal("all_to_all").c_str());
    }
    try {
      group.broadcast(at::ones({2}), -1);
      FAIL_CHECK("not refused");
    } catch (const accelerate::Error& error) {
      CHECK(error.kind() == accelerate::ErrorKind::usage);
    }
  });
}

}  // namespace

#undef ON_EVERY_RANK
#undef COLLECTIVES_CASE
