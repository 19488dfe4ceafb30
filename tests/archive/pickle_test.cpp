// SPDX-License-Identifier: Apache-2.0
#include "accelerate/archive/pickle.hpp"

#include <doctest/doctest.h>

#include <limits>

#include "accelerate/archive/unpickle.hpp"

using namespace accelerate::archive;
using namespace std::string_literals;

namespace {

const Origin origin{.path = "f", .operation = "load"};
const AllowedGlobals allowed{"collections.OrderedDict", "_codecs.encode", "torch.Size"};

PickleValue read(const std::string& pickle) { return unpickle(pickle, allowed, origin); }

std::string refusal(const std::string& pickle) {
  try {
    read(pickle);
  } catch (const accelerate::Error& error) {
    CHECK(error.kind() == accelerate::ErrorKind::data);
    return error.what();
  }
  return "";
}

// Text as of Python's repr(), with objects as calls.
std::string shown(const PickleValue& value);

std::string listed(const PickleItems& items) {
  std::string text;
  for (const auto& item : items) text += (text.empty() ? "" : ", ") + shown(item);
  return text;
}

std::string paired(const PickleEntries& entries) {
  std::string text;
  for (const auto& [key, item] : entries) text += (text.empty() ? "" : ", ") + shown(key) + ": " + shown(item);
  return text;
}

struct Show {
  std::string operator()(const PickleNone&) const { return "None"; }
  std::string operator()(bool value) const { return value ? "True" : "False"; }
  std::string operator()(int64_t value) const { return std::to_string(value); }
  std::string operator()(const PickleBigInteger& value) const { return fmt::format("big[{}]", value.bytes.size()); }
  std::string operator()(double value) const { return fmt::format("{}", value); }
  std::string operator()(const std::string& text) const { return "'" + text + "'"; }
  std::string operator()(const PickleBytes& value) const { return "b'" + value.bytes + "'"; }
  std::string operator()(const PickleList& list) const { return "[" + listed(*list.items) + "]"; }
  std::string operator()(const PickleTuple& tuple) const { return "(" + listed(*tuple.items) + ")"; }
  std::string operator()(const PickleDict& dict) const { return "{" + paired(*dict.entries) + "}"; }
  std::string operator()(const PickleGlobal& global) const { return global.str(); }
  std::string operator()(const PickleObject& object) const {
    const auto& parts = *object.parts;
    std::string text = parts.global.str() + "(" + listed(parts.arguments) + ")";
    if (!parts.entries.empty()) text += "{" + paired(parts.entries) + "}";
    if (parts.state.as<PickleNone>() == nullptr) text += " state " + shown(parts.state);
    return text;
  }
  std::string operator()(const PicklePersistent& persistent) const { return "<" + listed(*persistent.id) + ">"; }
};

std::string shown(const PickleValue& value) {
  return std::visit(Show{}, static_cast<const PickleValue::variant&>(value));
}

}  // namespace

TEST_CASE("Python's pickles of protocol 2 and 4 are read") {
  // pickle.dumps({"a": [1, 300, 70000, -5, 2**40, -2**33, 2**70], "b": (None, True, 1.5), 3: (1, 2, 3, 4)}, 2)
  const auto dict =
      "\x80\x02}q\x00(X\x01\x00\x00\x00\x61q\x01]q\x02(K\x01M,"
      "\x01Jp\x11\x01\x00J\xfb\xff\xff\xff\x8a\x06\x00\x00\x00\x00\x00\x01"
      "\x8a\x05\x00\x00\x00\x00\xfe\x8a\t\x00\x00\x00\x00\x00\x00\x00\x00@eX\x01\x00\x00\x00\x62q\x03N\x88G?"
      "\xf8\x00\x00"
      "\x00\x00\x00\x00\x87q\x04K\x03(K\x01K\x02K\x03K\x04tq\x05u."s;
  CHECK(shown(read(dict)) ==
        "{'a': [1, 300, 70000, -5, 1099511627776, -8589934592, big[9]], 'b': (None, True, 1.5), 3: (1, 2, 3, 4)}");
  // pickle.dumps(OrderedDict(x=1), 4)
  const auto ordered =
      "\x80\x04\x95*\x00\x00\x00\x00\x00\x00\x00\x8c\x0b\x63ollections\x94\x8c\x0bOrderedDict\x94\x93\x94)R\x94\x8c\x01x\x94K\x01s."s;
  CHECK(shown(read(ordered)) == "collections.OrderedDict(){'x': 1}");
  CHECK(find(read(ordered), "x") != nullptr);
  CHECK(find(read(ordered), "y") == nullptr);
  // a = [1]; pickle.dumps([a, a], 2): one list, twice
  const auto shared = read("\x80\x02]q\x00(]q\x01K\x01\x61h\x01\x65."s);
  CHECK(shown(shared) == "[[1], [1]]");
  const auto& items = *shared.as<PickleList>()->items;
  CHECK(items[0].as<PickleList>()->items == items[1].as<PickleList>()->items);
}

TEST_CASE("a written value is read again") {
  PickleDict dict;
  const auto add = [&](const std::string& key, PickleValue value) {
    dict.entries->emplace_back(key, std::move(value));
  };
  for (const int64_t n :
       {int64_t{0}, int64_t{-1}, int64_t{127}, int64_t{-129}, int64_t{1} << 31, -(int64_t{1} << 31) - 1,
        std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::min()}) {
    add(std::to_string(n), n);
    CHECK(shown(read(pickle(n))) == std::to_string(n));
  }
  add("float", -0.1);
  add("none", PickleNone{});
  add("flag", false);
  add("bytes", PickleBytes{"\x00\x7f\x80\xff"s});
  PickleObject ordered{std::make_shared<PickleObject::Parts>()};
  ordered.parts->global = {"collections", "OrderedDict"};
  ordered.parts->entries.emplace_back("k", PickleTuple{});
  ordered.parts->state = PickleDict{};
  add("ordered", ordered);
  PicklePersistent storage;
  *storage.id = {"storage"s, PickleGlobal{"torch", "Size"}, "0"s, "cpu"s, int64_t{5}};
  add("storage", storage);
  const std::string bytes = pickle(dict);
  const std::string text = shown(read(bytes));
  CHECK(pickle(read(bytes)) == bytes);
  CHECK(text.find("'ordered': collections.OrderedDict(){'k': ()} state {}") != std::string::npos);
  CHECK(text.find("'storage': <'storage', torch.Size, '0', 'cpu', 5>") != std::string::npos);
  CHECK(text.find("'float': -0.1, 'none': None, 'flag': False") != std::string::npos);
}

TEST_CASE("bytes of any length are read, because a custom optimizer may write many") {
  const std::string text = pickle(PickleBytes{std::string(140'000'000, '\xff')});
  const bool is_same = pickle(read(text)) == text;
  CHECK(is_same);
}

TEST_CASE("names outside the allow-list are refused before anything is executed") {
  const std::string explanation =
      ", which is not read: only numbers, texts, containers and tensors are; a program that is in a checkpoint is not "
      "run";
  CHECK(refusal("\x80\x02"
                "cposix\nsystem\n(X\x04\x00\x00\x00true\x85R."s) ==
        "load: f: the pickle at byte 2: it names 'posix.system'" + explanation);
  CHECK(refusal("\x80\x04\x8c\x08"
                "builtins\x8c\x04"
                "eval\x93."s) == "load: f: the pickle at byte 18: it names 'builtins.eval'" + explanation);
  for (const char* other : {"cbuiltins\nexec\n.", "c__builtin__\neval\n.", "cos\nsystem\n.", "csubprocess\nPopen\n.",
                            "ctorch.jit._pickle\nrestore_type_tag\n.", "ccollections\nOrderedDict.fromkeys\n."}) {
    CHECK(refusal("\x80\x02"s + other).ends_with(explanation));
  }
  for (const char* module : {"numpy._core.multiarray", "numpy.core.multiarray"}) {
    CHECK(refusal("\x80\x02"s + "c" + module + "\nscalar\n.") ==
          fmt::format("load: f: the pickle at byte 2: it names '{}.scalar'{}; it is a NumPy scalar, such as "
                      "numpy.float64(0.5): in Python, load the file with torch.load(path, weights_only=False), replace "
                      "each such value with the Python number value.item(), and save it again with torch.save",
                      module, explanation));
  }
  // INST, OBJ, EXT1, PERSID and NEWOBJ_EX can call arbitrary functions, so they are not read.
  for (const char instruction : {'i', 'o', '\x82', 'P', '\x92', 'F', 'I', 'S', 'V', 'g', 'p'}) {
    CHECK(refusal("\x80\x02("s + instruction) ==
          fmt::format("load: f: the pickle at byte 3: instruction 0x{:02x} is not read",
                      static_cast<unsigned char>(instruction)));
  }
}

TEST_CASE("truncated, dangling and malformed pickles are refused with their position") {
  const auto at = [](int byte, const std::string& what) {
    return fmt::format("load: f: the pickle at byte {}: {}", byte, what);
  };
  CHECK(refusal("") == at(0, "1 bytes are expected, 0 are left; it was cut"));
  CHECK(refusal("\x80\x02X\xff\xff\xff\xff"s) == at(2, "4294967295 bytes are expected, 0 are left; it was cut"));
  CHECK(refusal("\x80\x02"
                "cabc"s) == at(2, "a line does not end; it was cut"));
  CHECK(refusal("\x80\x06."s) == at(0, "protocol 6 is not read, 2 to 5 are"));
  CHECK(refusal("\x80\x02h\x05."s) == at(2, "value 5 of the memo does not exist"));
  CHECK(refusal("\x80\x02."s) == at(2, "ends with 0 values, expected 1"));
  CHECK(refusal("\x80\x02NN."s) == at(4, "ends with 2 values, expected 1"));
  CHECK(refusal("\x80\x02(N."s) == at(4, "ends with 1 values, expected 1"));
  CHECK(refusal("\x80\x02"
                "a."s) == at(2, "expected a value, found none"));
  CHECK(refusal("\x80\x02(a."s) == at(3, "expected a value, found none"));
  CHECK(refusal("\x80\x02t."s) == at(2, "expected a mark, found none"));
  CHECK(refusal("\x80\x02K\x01N\x61."s) == at(5, "expected a list, found an integer"));
  CHECK(refusal("\x80\x02]K\x01N\x73."s) == at(6, "expected a dict, found a list"));
  CHECK(refusal("\x80\x02}(Nu."s) == at(5, "a dict has 1 keys and values, expected pairs"));
  CHECK(refusal("\x80\x02NNR."s) == at(4, "a call is of None with None, expected a name and a tuple"));
  CHECK(refusal("\x80\x02]Nb."s) == at(4, "expected an object, found a list"));
  CHECK(refusal("\x80\x02NQ."s) == at(3, "a storage is named by None, expected a tuple"));
  CHECK(refusal("\x80\x02NN\x93."s) == at(4, "a name is of no texts"));
}

TEST_CASE("short pickles for recursive values, or billions of values or bytes, are refused") {
  CHECK(refusal("\x80\x02]q\x00h\x00\x61."s) == "load: f: the pickle at byte 7: a list is put into itself");
  CHECK(refusal("\x80\x02]q\x00]h\x00\x61\x61."s) ==
        "load: f: the pickle at byte 9: a list is changed after it was used in another value");
  std::string deep = "\x80\x02";
  for (int i = 0; i < 200'000; ++i) deep += "]";
  for (int i = 1; i < 200'000; ++i) deep += "a";
  CHECK(refusal(deep + ".") == "load: f: the pickle at byte 200101: values are nested more than 100 deep");
  std::string laughs = "\x80\x02]q\x00"s;
  for (int i = 0; i < 60; ++i) laughs += "0](h\x00h\x00\x65q\x00"s;
  CHECK(refusal(laughs + ".").ends_with("the values are more than 4000000"));
  std::string copies = "\x80\x02X\x00\x00\x10\x00"s + std::string(1 << 20, 'x') + "q\x00"s;
  for (int i = 0; i < 300; ++i) copies += "h\x00"s;
  CHECK(refusal(copies + ".").ends_with("texts are repeated to more than 268435456 bytes"));
  CHECK(refusal("\x80\x02(" + std::string(4'000'001, ']') + "e.")
            .ends_with("at byte 4000003: the values are more than 4000000"));
}

TEST_CASE("repeated calls with one tuple, and repeated names, are limited") {
  // Calls `callee` `times` times with one tuple of values from the memo.
  const auto calls = [](const std::string& values, int times) {
    std::string pickle = "\x80\x02("s + values + "tq\x00"s + "0ccollections\nOrderedDict\nq\x01"s + "0";
    for (int i = 0; i < times; ++i) pickle += "h\x01h\x00R0"s;
    return pickle + "N.";
  };
  CHECK(refusal(calls(std::string(100'000, 'N'), 40)).empty());
  CHECK(refusal(calls(std::string(100'000, 'N'), 5000)).ends_with("calls have more than 4000000 values"));
  const auto text = "X\x00\x00\x10\x00"s + std::string(1 << 20, 'x');
  CHECK(refusal(calls(text, 200)).empty());
  CHECK(refusal(calls(text, 20'000)).ends_with("texts are repeated to more than 268435456 bytes"));
  std::string names =
      "\x80\x02"
      "c__torch__\n" +
      std::string(1 << 20, 'x') + "\nq\x00"s;
  std::string numbers = "\x80\x02\x8b\x00\x00\x10\x00"s + std::string(1 << 20, 'x') + "q\x00"s;
  for (int i = 0; i < 300; ++i) {
    names += "h\x00"s;
    numbers += "h\x00"s;
  }
  const std::string error = "texts are repeated to more than 268435456 bytes";
  CHECK_THROWS_WITH(unpickle(names + ".", {"__torch__.*"}, origin),
                    ("load: f: the pickle at byte 1049100: " + error).c_str());
  CHECK(refusal(numbers + ".").ends_with(error));
}
