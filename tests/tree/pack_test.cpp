// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.hpp"
//
#include <array>
#include <map>
#include <unordered_map>

#include "accelerate/tree/pack.hpp"

using accelerate::tree::pack;
using accelerate::tree::packable;
using accelerate::tree::unpack;

namespace {

enum class Kind : uint8_t { cat, dog };

struct Box {
  at::Tensor corners;
  int64_t label = 0;
};
auto tree_members(Box& box) { return std::tie(box.corners, box.label); }

struct Sample {
  at::Tensor image, missing;
  std::vector<Box> boxes;
  std::map<std::string, std::pair<double, at::Tensor>> named;
  std::unordered_map<int, std::string> numbered;
  std::optional<std::string> title, none;
  std::array<float, 2> scale{};
  std::vector<bool> flags;
  std::tuple<Kind, bool> kind;
};
auto tree_members(Sample& s) {
  return std::tie(s.image, s.missing, s.boxes, s.named, s.numbered, s.title, s.none, s.scale, s.flags, s.kind);
}

struct Opaque {
  at::Tensor data;
  FILE* file = nullptr;
};
auto tree_members(Opaque& opaque) { return std::tie(opaque.data, opaque.file); }

}  // namespace

TEST_CASE("packed values of any structure can be unpacked") {
  Sample sample;
  sample.image = torch::rand({2, 3});
  sample.boxes = {{torch::tensor({1, 2}), 7}, {torch::zeros({0, 4}, torch::kHalf), -1}};
  sample.named = {{"a", {0.5, torch::tensor(true)}}, {"", {-1.0, {}}}};
  sample.numbered = {{3, "three"}, {4, std::string("\0x", 2)}};
  sample.title = "words";
  sample.scale = {1.5F, 2.5F};
  sample.flags = {true, false, true};
  sample.kind = {Kind::dog, true};

  const auto packed = pack(sample);
  CHECK((packed.scalar_type() == torch::kByte));
  const auto got = unpack<Sample>(packed);
  CHECK(got.image.equal(sample.image));
  CHECK_FALSE(got.missing.defined());
  REQUIRE(got.boxes.size() == 2);
  CHECK(got.boxes[0].corners.equal(sample.boxes[0].corners));
  CHECK(got.boxes[0].label == 7);
  CHECK((got.boxes[1].corners.scalar_type() == torch::kHalf));
  CHECK(got.boxes[1].corners.sizes() == at::IntArrayRef{0, 4});
  CHECK(got.named.at("a").first == 0.5);
  CHECK(got.named.at("a").second.item<bool>());
  CHECK_FALSE(got.named.at("").second.defined());
  CHECK(got.numbered == sample.numbered);
  CHECK(got.title == sample.title);
  CHECK_FALSE(got.none);
  CHECK(got.scale == sample.scale);
  CHECK(got.flags == sample.flags);
  CHECK(got.kind == sample.kind);
}

TEST_CASE("tensors of every dtype and layout in memory keep their values, aligned for vector loads") {
  for (const auto dtype : {torch::kByte, torch::kChar, torch::kShort, torch::kInt, torch::kLong, torch::kHalf,
                           torch::kBFloat16, torch::kFloat, torch::kDouble, torch::kBool, torch::kComplexFloat}) {
    const auto whole = torch::arange(24).reshape({4, 6}).to(dtype);
    for (const auto& tensor : {whole, whole.t(), whole.slice(1, 1, 6, 2), whole[2][3]}) {
      const auto got = unpack<std::pair<at::Tensor, at::Tensor>>(pack(std::pair(tensor, tensor)));
      CHECK(got.second.equal(tensor));
      CHECK(reinterpret_cast<uintptr_t>(got.second.data_ptr()) % 64 == 0);
    }
  }
}

TEST_CASE("conjugate and negative views are packed with their values") {
  const auto z = torch::complex(torch::arange(3.0), torch::ones({3}));
  for (const auto& view : {z.conj(), torch::imag(z.conj())}) {
    CHECK(unpack<at::Tensor>(pack(view)).equal(view.resolve_conj().resolve_neg()));
  }
}

TEST_CASE("unpacked tensors own their memory and outlive the bytes") {
  auto tensor = torch::zeros(3);
  auto packed = pack(tensor);
  auto got = unpack<at::Tensor>(packed);
  packed = at::Tensor();
  got.add_(1);
  CHECK(got.equal(torch::ones(3)));
  CHECK(tensor.equal(torch::zeros(3)));
}

TEST_CASE("unsupported types fail at compile time, sparse tensors at run time, invalid bytes when they are read") {
  static_assert(packable<Sample>);
  static_assert(!packable<Opaque>);
  static_assert(!packable<std::vector<void*>>);
  CHECK_THROWS_WITH((void)pack(torch::zeros({2, 2}).to_sparse()),
                    "pack: a tensor is SparseCPUFloatType, must be dense and not quantized to be sent");
  CHECK_THROWS_WITH((void)unpack<at::Tensor>(pack(int64_t{1})),
                    "unpack: a value needs 8 bytes where 0 are left; it was packed as another type");
  const auto packed = pack(torch::zeros(100));
  CHECK_THROWS_WITH((void)unpack<at::Tensor>(packed.slice(0, 0, 128)),
                    "unpack: a tensor needs 400 bytes where 64 are left");
}
