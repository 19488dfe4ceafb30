// SPDX-License-Identifier: Apache-2.0
#include "accelerate/archive/torch_file.hpp"

#include <doctest/doctest.h>

#include "accelerate/archive/pickle.hpp"
#include "accelerate/archive/zip.hpp"

using namespace accelerate::archive;

namespace {

const Origin origin{.path = "f", .operation = "load"};

PickleValue call(const std::string& module, const std::string& name, PickleItems arguments) {
  auto parts = std::make_shared<PickleObject::Parts>();
  parts->global = {module, name};
  parts->arguments = std::move(arguments);
  return PickleObject{std::move(parts)};
}

PickleValue tuple(PickleItems items) { return PickleTuple{std::make_shared<PickleItems>(std::move(items))}; }

PickleValue dict(PickleEntries entries) { return PickleDict{std::make_shared<PickleEntries>(std::move(entries))}; }

PickleValue ordered_dict() { return call("collections", "OrderedDict", {}); }

PickleValue text(const std::string& words) { return PickleValue(words); }

PickleValue storage(const std::string& type, const std::string& name, int64_t elements) {
  return PicklePersistent{std::make_shared<PickleItems>(
      PickleItems{text("storage"), PickleGlobal{"torch", type}, text(name), text("cpu"), elements})};
}

PickleValue tensor(PickleValue where, int64_t offset, PickleItems shape, PickleItems stride) {
  return call("torch._utils", "_rebuild_tensor_v2",
              {std::move(where), offset, tuple(std::move(shape)), tuple(std::move(stride)), false, ordered_dict()});
}

std::string file_of(const PickleValue& value, const std::string& data = std::string(24, 'x'),
                    const std::string& order = "little") {
  StringSink sink;
  ZipWriter zip(sink);
  zip.add("top/data.pkl", pickle(value));
  zip.add("top/byteorder", order);
  zip.add("top/data/0", data);
  zip.finish();
  return sink.text();
}

std::string refusal(const std::string& file) {
  try {
    static_cast<void>(read_torch_file(file, origin));
  } catch (const accelerate::Error& error) {
    CHECK(error.kind() == accelerate::ErrorKind::data);
    return error.what();
  }
  return "";
}

int64_t n(int64_t value) { return value; }

}  // namespace

TEST_CASE("tensors are listed with path, dtype, shape and offset, other values as text") {
  const auto where = storage("FloatStorage", "0", 6);
  const auto inner = dict({{n(0), dict({{text("exp_avg"), tensor(where, 0, {n(2), n(3)}, {n(3), n(1)})},
                                        {text("step"), tensor(where, 5, {}, {})}})}});
  const auto whole = dict({{text("state"), inner},
                           {text("lr"), 0.5},
                           {text("betas"), tuple({0.9, 0.999})},
                           {text("flags"), tuple({true, PickleNone{}, n(-3), text("a b")})},
                           {text("parameter"), call("torch._utils", "_rebuild_parameter",
                                                    {tensor(where, 0, {n(3), n(2)}, {n(1), n(3)}), true})}});
  const std::string bytes = file_of(whole, "abcdefghijklmnopqrstuvwx");
  const TorchFile file = read_torch_file(bytes, origin);
  REQUIRE(file.tensors.size() == 3);
  CHECK(file.tensors[0].path == "state.0.exp_avg");
  CHECK(file.tensors[0].dtype == "F32");
  CHECK(file.tensors[0].shape == std::vector<uint64_t>{2, 3});
  CHECK(file.tensors[0].is_contiguous());
  CHECK(file.tensors[0].bytes_of(bytes) == "abcdefghijklmnopqrstuvwx");
  CHECK(file.tensors[1].path == "state.0.step");
  CHECK(file.tensors[1].bytes_of(bytes) == "uvwx");
  CHECK(file.tensors[1].storage == file.tensors[0].storage);
  CHECK(file.tensors[2].path == "parameter");
  CHECK_FALSE(file.tensors[2].is_contiguous());
  const std::vector<std::pair<std::string, std::string>> others{
      {"lr", "0.5"},       {"betas.0", "0.9"}, {"betas.1", "0.999"}, {"flags.0", "True"},
      {"flags.1", "None"}, {"flags.2", "-3"},  {"flags.3", "'a b'"}};
  CHECK(file.others == others);
}

TEST_CASE("files of other writers, and other byte orders, are refused") {
  StringSink sink;
  ZipWriter zip(sink);
  zip.add("readme", "hello");
  zip.finish();
  CHECK(refusal(sink.text()) == "load: f: the ZIP file has no data.pkl; torch.save writes one");
  CHECK(refusal(file_of(dict({}), "", "big")) == "load: f: the numbers are in byte order 'big', little is read");
  CHECK(refusal(file_of(call("os", "system", {text("true")}))).find("it names 'os.system', which is not read") !=
        std::string::npos);
}

TEST_CASE("tensors outside their storage are refused by name") {
  const auto of_a = [](const PickleValue& value) { return refusal(file_of(dict({{text("a"), value}}))); };
  const auto where = storage("FloatStorage", "0", 6);
  CHECK(of_a(tensor(where, 0, {n(2), n(3)}, {n(3), n(1)})).empty());
  CHECK(of_a(tensor(where, 7, {n(0)}, {n(1)})).empty());
  const std::string beyond = "load: f: the tensor 'a' reaches beyond its storage of 6 elements";
  CHECK(of_a(tensor(where, 1, {n(2), n(3)}, {n(3), n(1)})) == beyond);
  CHECK(of_a(tensor(where, 0, {n(2)}, {n(1), n(1)})) == beyond);
  CHECK(of_a(tensor(where, 0, {n(1) << 62, n(1) << 62}, {n(0), n(0)})) == beyond);
  CHECK(of_a(tensor(where, 0, {n(3), n(2)}, {int64_t{1} << 62, n(1) << 62})) == beyond);
  CHECK(of_a(tensor(where, -1, {n(2)}, {n(1)})) ==
        "load: f: the tensor 'a' has -1 in its shape, expected an integer from 0");
  CHECK(of_a(tensor(storage("FloatStorage", "9", 6), 0, {}, {})) ==
        "load: f: the tensor 'a' refers to the storage '9', which the file does not contain");
  CHECK(of_a(tensor(n(3), 0, {}, {})) == "load: f: the tensor 'a' refers to an integer, expected a storage");
  CHECK(of_a(call("torch._utils", "_rebuild_tensor_v2", {n(3)})) ==
        "load: f: the tensor 'a' is made of 1 values, expected at least 6");
  CHECK(of_a(call("torch._utils", "_rebuild_parameter", {})) == "load: f: the parameter 'a' has no values");
  CHECK(of_a(tensor(
            PicklePersistent{std::make_shared<PickleItems>(PickleItems{
                text("storage"), PickleGlobal{"torch.storage", "UntypedStorage"}, text("0"), text("cpu"), n(24)})},
            0, {}, {})) == "load: f: the tensor 'a' has an unknown dtype");
  const auto with_bits = [&](const PickleValue& bits) {
    return of_a(call("torch._utils", "_rebuild_tensor_v2",
                     {where, n(0), tuple({n(2)}), tuple({n(1)}), false, ordered_dict(), bits}));
  };
  CHECK(with_bits(dict({})).empty());
  CHECK(with_bits(PickleNone{}).empty());
  CHECK(with_bits(n(3)) == "load: f: the tensor 'a' has an integer as metadata, expected a dict");
  CHECK(with_bits(dict({{text("conj"), true}})) ==
        "load: f: the tensor 'a' is a conjugate of dtype F32, expected C64 or C128");
  CHECK(with_bits(dict({{text("neg"), n(1)}})) ==
        "load: f: the tensor 'a' has the metadata 'neg': 1, expected 'conj' or 'neg' with a bool");
  CHECK(with_bits(dict({{text("mkldnn"), true}})) ==
        "load: f: the tensor 'a' has the metadata 'mkldnn': True, expected 'conj' or 'neg' with a bool");
  CHECK(of_a(call("torch._utils", "_rebuild_tensor_v2",
                  {storage("LongStorage", "0", 3), n(0), tuple({n(2)}), tuple({n(1)}), false, ordered_dict(),
                   dict({{text("neg"), true}})})) ==
        "load: f: the tensor 'a' is a negative of dtype I64, expected a floating-point or complex dtype");
}

TEST_CASE("conj and neg bits of a tensor are read, with the dtype in the storage and in the tensor's call") {
  const auto bits_of = [](const std::string& function, PickleItems last) {
    PickleItems arguments{
        storage("ComplexFloatStorage", "0", 3), n(0), tuple({n(2)}), tuple({n(1)}), false, ordered_dict()};
    arguments.insert(arguments.end(), last.begin(), last.end());
    const TorchTensor found =
        read_torch_file(file_of(dict({{text("a"), call("torch._utils", function, std::move(arguments))}})), origin)
            .tensors.at(0);
    return std::pair(found.is_conj, found.is_neg);
  };
  const PickleGlobal dtype{"torch", "ComplexFloatStorage"};
  using Bits = std::pair<bool, bool>;
  CHECK(bits_of("_rebuild_tensor_v2", {}) == Bits{false, false});
  CHECK(bits_of("_rebuild_tensor_v2", {dict({{text("conj"), true}})}) == Bits{true, false});
  CHECK(bits_of("_rebuild_tensor_v2", {dict({{text("conj"), false}, {text("neg"), true}})}) == Bits{false, true});
  CHECK(bits_of("_rebuild_tensor_v3", {dtype}) == Bits{false, false});
  CHECK(bits_of("_rebuild_tensor_v3", {dtype, dict({{text("conj"), true}, {text("neg"), true}})}) == Bits{true, true});
}

TEST_CASE("Python attributes of tensors are ignored, but forbidden names in them are refused") {
  const auto where = storage("FloatStorage", "0", 6);
  const auto arguments = tuple({where, n(0), tuple({n(2)}), tuple({n(1)}), false, ordered_dict()});
  const auto attributes = dict({{text("tags"), tuple({text("a")})}});
  const auto with_attributes = call(
      "torch._tensor", "_rebuild_from_type_v2",
      {PickleGlobal{"torch._utils", "_rebuild_tensor_v2"}, PickleGlobal{"torch", "Tensor"}, arguments, attributes});
  const auto parameter = [](const PickleValue& data, const PickleValue& state) {
    return call("torch._utils", "_rebuild_parameter_with_state", {data, true, ordered_dict(), state});
  };
  const auto file = read_torch_file(
      file_of(dict({{text("tensor"), with_attributes}, {text("parameter"), parameter(with_attributes, attributes)}})),
      origin);
  REQUIRE(file.tensors.size() == 2);
  CHECK(file.others.empty());
  for (const auto& one : file.tensors) CHECK(one.shape == std::vector<uint64_t>{2});
  const auto of_a = [](const PickleValue& value) { return refusal(file_of(dict({{text("a"), value}}))); };
  CHECK(of_a(call("torch._utils", "_rebuild_parameter_with_state", {})) == "load: f: the parameter 'a' has no values");
  CHECK(of_a(parameter(n(3), attributes)) == "load: f: 'a' is an object, expected a tensor");
  CHECK(of_a(parameter(with_attributes, dict({{text("f"), PickleGlobal{"os", "system"}}})))
            .find("it names 'os.system', which is not read") != std::string::npos);
}

TEST_CASE("a file with too many or too long paths is refused before its list fills the memory") {
  const auto keyed = [](const std::string& key, const PickleValue& value) {
    return refusal(file_of(dict({{text(key), value}})));
  };
  const auto nones = [](size_t count) { return tuple(PickleItems(count, PickleNone{})); };
  CHECK(keyed(std::string(4096, 'A'), nones(1000)).empty());
  CHECK(keyed(std::string(4097, 'A'), nones(1000)) ==
        "load: f: the key '" + std::string(60, 'A') + "...' has 4097 bytes, expected at most 4096");
  const std::string together = "load: f: the paths and texts of the values have more than 268435456 bytes together";
  CHECK(keyed(std::string(4096, 'A'), nones(100'000)) == together);
  CHECK(keyed(std::string(4096, 'A'), tuple(PickleItems(100'000, tuple({})))) == together);
  const auto one = tensor(storage("FloatStorage", "0", 6), 0, {n(2)}, {n(1)});
  CHECK(keyed("a", dict(PickleEntries(3000, {text(std::string(4000, 'k')), one}))).empty());
  CHECK(keyed(std::string(4000, 'a'), dict(PickleEntries(50'000, {text(std::string(4000, 'k')), one}))) == together);
  CHECK(keyed("a", tuple(PickleItems(1000, call("__torch__", std::string(1 << 20, 'N'), {})))) == together);
  CHECK(keyed("a", tensor(storage("FloatStorage", "0", 6), 0, PickleItems(65, n(1)), {n(1)})) ==
        "load: f: the tensor 'a' has 65 dimensions, expected at most 64");
}
