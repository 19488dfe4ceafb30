// SPDX-License-Identifier: Apache-2.0
#include "launch/commands/estimate_memory.hpp"

#include <doctest/doctest.h>

#include "accelerate/archive/pickle.hpp"
#include "accelerate/archive/zip.hpp"
#include "tests/launch/commands/files.hpp"
#include "tests/launch/commands/program.hpp"

using namespace accelerate::launch;
using testing::run_program;
using testing::safetensors_of;
using testing::TemporaryFolder;
using testing::write_file;

namespace {

testing::Ran estimate(const std::vector<std::string>& arguments) {
  return run_program("accelerate_estimate_memory", arguments);
}

std::string bytes(size_t count) { return std::string(count, '\0'); }

const std::vector<testing::SmallTensor> model{{"conv.weight", "F32", {16, 4}, bytes(256)},
                                              {"conv.bias", "F32", {16}, bytes(64)},
                                              {"norm.weight", "BF16", {8}, bytes(16)},
                                              {"norm.num_batches_tracked", "I64", {}, bytes(8)}};

// A file of torch.save() with torch.zeros(1).expand(elements).
void write_expanded(const std::filesystem::path& path, int64_t elements) {
  using namespace accelerate::archive;
  const auto items = [](PickleItems all) { return std::make_shared<PickleItems>(std::move(all)); };
  const auto text = [](const char* words) { return PickleValue(std::string(words)); };
  const PickleValue storage = PicklePersistent{
      items({text("storage"), PickleGlobal{"torch", "FloatStorage"}, text("0"), text("cpu"), int64_t{1}})};
  PickleObject tensor{std::make_shared<PickleObject::Parts>()};
  tensor.parts->global = {"torch._utils", "_rebuild_tensor_v2"};
  tensor.parts->arguments = {storage, int64_t{0},  PickleTuple{items({elements})}, PickleTuple{items({int64_t{0}})},
                             false,   PickleNone{}};
  PickleDict dict;
  dict.entries->emplace_back(text("a"), tensor);
  StringSink sink;
  ZipWriter zip(sink);
  zip.add("m/data.pkl", pickle(dict));
  zip.add("m/data/0", bytes(4));
  zip.finish();
  write_file(path, sink.text());
}

}  // namespace

TEST_CASE("parameters are counted by dtype and layer, without counters, and shared memory once") {
  const auto weight = [](const std::string& name, const std::string& dtype, uint64_t elements, uint64_t each) {
    return Weight{.name = name, .dtype = dtype, .elements = elements, .bytes = elements * each, .memory = name};
  };
  std::vector<Weight> weights{weight("a.weight", "F32", 10, 4),      weight("a.bias", "F32", 2, 4),
                              weight("b.deep.weight", "F16", 20, 2), weight("b.steps", "I64", 100, 8),
                              weight("tied", "F32", 10, 4),          weight("bare", "C64", 1, 8)};
  weights[4].memory = "a.weight";
  const ModelSize size = size_of(weights);
  CHECK(size.tensors == 6);
  CHECK(size.shared == 1);
  CHECK(size.parameters == 33);
  CHECK(size.numbers == 34);
  CHECK(size.bytes == 48 + 40 + 800 + 8);
  REQUIRE(size.dtypes.size() == 4);
  CHECK(size.dtypes[0].dtype == "I64");
  CHECK(size.dtypes[1].dtype == "F32");
  CHECK(size.dtypes[1].tensors == 2);
  CHECK(size.dtypes[1].elements == 12);
  CHECK(size.largest.name == "b.deep");
  CHECK(size.largest.parameters == 20);
}

TEST_CASE("the program reads a file, an index with its shards, or a folder with one of them") {
  const TemporaryFolder at;
  write_file(at.path / "model.safetensors", safetensors_of(model));
  const auto file = estimate({at / "model.safetensors"});
  CHECK(file.err.empty());
  CHECK(file.code == 0);
  CHECK(file.out == (at / "model.safetensors") +
                        ": 4 tensors, 88 parameters, 344 B\n"
                        "\n"
                        "dtype  tensors  elements  memory\n"
                        "F32          2        80   320 B\n"
                        "BF16         1         8    16 B\n"
                        "I64          1         1     8 B\n"
                        "\n"
                        "largest layer: conv (bias, weight), 80 parameters\n"
                        "\n"
                        "                                largest layer  weights  gradients      adam  training\n"
                        "float32, or mixed bf16 or fp16          320 B    352 B      352 B     704 B  1.38 KiB\n"
                        "bfloat16, masters in float32            160 B    176 B      176 B  1.03 KiB  1.38 KiB\n"
                        "int8                                     80 B     88 B          -         -         -\n"
                        "int4                                     40 B     44 B          -         -         -\n"
                        "Activations and the memory of the system and its libraries are not included.\n");
  CHECK(estimate({at.path.string()}).out == file.out);

  const TemporaryFolder sharded;
  write_file(sharded.path / "1.safetensors", safetensors_of({model[0], model[1]}));
  write_file(sharded.path / "2.safetensors", safetensors_of({model[2], model[3]}));
  write_file(sharded.path / "model.safetensors.index.json",
             R"({"weight_map":{"conv.weight":"1.safetensors","conv.bias":"1.safetensors",)"
             R"("norm.weight":"2.safetensors","norm.num_batches_tracked":"2.safetensors"}})");
  const auto shards = estimate({sharded.path.string()});
  CHECK(shards.code == 0);
  CHECK(shards.out.substr(shards.out.find(": 4")) == file.out.substr(file.out.find(": 4")));
}

TEST_CASE("a complex number counts as two in float32, and control characters in names are printed as bytes") {
  const TemporaryFolder at;
  write_file(at.path / "m.safetensors", safetensors_of({{"a\x1b[2J.w\n", "C64", {2}, bytes(16)}}));
  const auto ran = estimate({at / "m.safetensors"});
  CHECK(ran.out.find("largest layer: a\\x1b[2J (w\\x0a), 2 parameters\n") != std::string::npos);
  CHECK(ran.out.find("float32, or mixed bf16 or fp16           16 B     16 B       16 B  32 B      64 B\n") !=
        std::string::npos);
}

TEST_CASE("an expanded tensor larger than memory is refused by name") {
  const uint64_t many = uint64_t{1} << 62;
  CHECK_THROWS_WITH(size_of({{.name = "a", .dtype = "F32", .shape = {many}, .elements = many, .bytes = ~uint64_t{0}}}),
                    "accelerate_estimate_memory: 'a' of shape [4611686018427387904] has 4,611,686,018,427,387,904 "
                    "elements, with the tensors before it more than 64.00 PiB");
  const Weight half{.name = "a", .dtype = "U8", .elements = uint64_t{1} << 55, .bytes = uint64_t{1} << 55};
  Weight rest = half;
  rest.memory = "b";
  CHECK(size_of({half, rest}).bytes == uint64_t{1} << 56);
  Weight more = half;
  more.memory = "c";
  CHECK_THROWS(size_of({half, rest, more}));
  const TemporaryFolder at;
  write_expanded(at.path / "pytorch_model.bin", int64_t{1} << 62);
  CHECK(estimate({at.path.string()}).err ==
        "accelerate_estimate_memory: 'a' of shape [4611686018427387904] has 4,611,686,018,427,387,904 elements, with "
        "the tensors before it more than 64.00 PiB\n");
}

TEST_CASE("the optimizer's memory depends on the chosen optimizer") {
  const TemporaryFolder at;
  write_file(at.path / "m.safetensors", safetensors_of(model));
  CHECK(estimate({"--optimizer", "sgd", at / "m.safetensors"}).out.find("sgd") != std::string::npos);
  CHECK(estimate({"--optimizer=momentum", at / "m.safetensors"}).out.find("momentum") != std::string::npos);
  const auto wrong = estimate({"--optimizer", "lion", at / "m.safetensors"});
  CHECK(wrong.code == 2);
  CHECK(wrong.out.empty());
  CHECK(wrong.err == "accelerate_estimate_memory: --optimizer is 'lion', must be adam, momentum or sgd\n");
}

TEST_CASE("a file that cannot be estimated is reported with its path and the remedy") {
  const TemporaryFolder at;
  const auto missing = estimate({"/no/such.safetensors"});
  CHECK(missing.code == 1);
  CHECK(missing.err ==
        "accelerate_estimate_memory: /no/such.safetensors cannot be opened: No such file or directory\n");
  CHECK(estimate({at.path.string()}).err ==
        "accelerate_estimate_memory: " + at.path.string() +
            " holds none of model.safetensors, model.safetensors.index.json, pytorch_model.bin, "
            "pytorch_model.bin.index.json; name the file\n");
  write_file(at.path / "counters.safetensors", safetensors_of({model[3]}));
  CHECK(estimate({at / "counters.safetensors"}).err ==
        "accelerate_estimate_memory: " + (at / "counters.safetensors") + " holds no tensor of floating numbers\n");
  write_file(at.path / "cut.safetensors", "1234");
  CHECK(estimate({at / "cut.safetensors"}).err == "accelerate_estimate_memory: " + (at / "cut.safetensors") +
                                                      ": the file has 4 bytes, a safetensors file has at least 8\n");
  CHECK(estimate({}).code == 2);
  CHECK(estimate({}).err == "accelerate_estimate_memory: FILE is required; see accelerate_estimate_memory --help\n");
  const auto help = estimate({"--help"});
  CHECK(help.code == 0);
  CHECK(help.out.find("Examples:\n  accelerate_estimate_memory model.safetensors\n") != std::string::npos);
  CHECK(estimate({"--version"}).out == "accelerate_estimate_memory 0.2.0\n");
}
