// SPDX-License-Identifier: Apache-2.0
// The instructions are those of Python's Lib/pickletools.py.
#include "accelerate/archive/unpickle.hpp"

#include <algorithm>
#include <cstring>
#include <unordered_map>
#include <unordered_set>

namespace accelerate::archive {
namespace {

// Nesting depth and number of represented values. Values inside containers are immutable, so both stay correct and no
// value contains itself.
struct Extent {
  int64_t depth = 1;
  int64_t values = 1;
};

// A tensor has about 20 values, and an empty list uses about 300 bytes of memory.
constexpr int64_t kMaxDepth = 100, kMaxValues = 4'000'000;
constexpr uint64_t kMaxCopied = uint64_t{1} << 28;

// How to save the value of a refused name in Python.
std::string_view remedy_for(std::string_view name) {
  const bool is_numpy_scalar = name.starts_with("numpy.") && name.ends_with(".multiarray.scalar");
  return is_numpy_scalar ? "; it is a NumPy scalar, such as numpy.float64(0.5): in Python, load the file with "
                           "torch.load(path, weights_only=False), replace each such value with the Python number "
                           "value.item(), and save it again with torch.save"
                         : "";
}

class Unpickler {
 public:
  Unpickler(std::string_view pickle, const AllowedGlobals& allowed, const Origin& origin)
      : pickle_(pickle), allowed_(allowed), origin_(origin) {}

  PickleValue run() {
    while (!ended_) {
      instruction_ = at_;
      step(take(1)[0]);
    }
    if (stack_.size() != 1 || !marks_.empty()) fail("ends with {} values, expected 1", stack_.size());
    return std::move(stack_.back().value);
  }

 private:
  struct Operand {
    PickleValue value;
    Extent extent{};
  };

  template <typename... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    origin_.broken("the pickle at byte {}: {}", instruction_, fmt::format(format, std::forward<Args>(args)...));
  }

  std::string_view take(uint64_t bytes) {
    if (bytes > pickle_.size() - at_)
      fail("{} bytes are expected, {} are left; it was cut", bytes, pickle_.size() - at_);
    at_ += bytes;
    return pickle_.substr(at_ - bytes, bytes);
  }
  template <typename Number>
  Number number() {
    Number number{};
    const std::string_view bytes = take(sizeof(number));
    std::memcpy(&number, bytes.data(), bytes.size());
    return number;
  }
  std::string_view line() {
    const auto end = pickle_.find('\n', at_);
    if (end == std::string_view::npos) fail("a line does not end; it was cut");
    const auto text = take(end - at_);
    ++at_;
    return text;
  }

  void push(PickleValue value, Extent extent = {}) {
    if (stack_.size() >= kMaxValues) fail("the values are more than {}", kMaxValues);
    stack_.push_back({std::move(value), extent});
  }
  Operand pop() {
    if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) fail("expected a value, found none");
    Operand operand = std::move(stack_.back());
    stack_.pop_back();
    return operand;
  }
  Operand& top() {
    if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) fail("expected a value, found none");
    return stack_.back();
  }
  std::vector<Operand> pop_to_mark() {
    if (marks_.empty()) fail("expected a mark, found none");
    const auto from = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    std::vector<Operand> operands(std::make_move_iterator(from), std::make_move_iterator(stack_.end()));
    stack_.erase(from, stack_.end());
    marks_.pop_back();
    return operands;
  }

  // A value inside another one must not change afterwards.
  PickleValue set_item(Operand& operand, Extent& whole, const void* container = nullptr) {
    if (container != nullptr && identity(operand.value) == container)
      fail("{} is put into itself", operand.value.kind());
    whole.depth = std::max(whole.depth, operand.extent.depth + 1);
    whole.values = std::min(whole.values + operand.extent.values, kMaxValues + 1);
    if (whole.depth > kMaxDepth) fail("values are nested more than {} deep", kMaxDepth);
    if (whole.values > kMaxValues) fail("the values are more than {}", kMaxValues);
    freeze(operand.value);
    return operand.value;
  }
  static std::shared_ptr<const void> shared(const PickleValue& value) {
    if (const auto* list = value.as<PickleList>()) return list->items;
    if (const auto* dict = value.as<PickleDict>()) return dict->entries;
    if (const auto* object = value.as<PickleObject>()) return object->parts;
    return nullptr;
  }
  static const void* identity(const PickleValue& value) { return shared(value).get(); }
  void freeze(const PickleValue& value) {
    if (auto contents = shared(value)) frozen_.insert(std::move(contents));
  }
  // Returns the container on top of the stack, to be filled.
  Operand& open_container() {
    Operand& operand = top();
    if (frozen_.contains(shared(operand.value)))
      fail("{} is changed after it was used in another value", operand.value.kind());
    return operand;
  }

  PickleValue tuple_of(std::vector<Operand> operands, Extent& extent) {
    PickleTuple tuple;
    for (Operand& operand : operands) tuple.items->push_back(set_item(operand, extent));
    return tuple;
  }
  void push_tuple(std::vector<Operand> operands) {
    Extent extent;
    PickleValue tuple = tuple_of(std::move(operands), extent);
    push(std::move(tuple), extent);
  }
  void push_last_as_tuple(size_t count) {
    std::vector<Operand> operands;
    for (size_t i = 0; i < count; ++i) operands.push_back(pop());
    std::reverse(operands.begin(), operands.end());
    push_tuple(std::move(operands));
  }

  void append(std::vector<Operand> operands) {
    Operand& container = open_container();
    PickleItems* items = nullptr;
    if (const auto* list = container.value.as<PickleList>()) items = list->items.get();
    if (const auto* object = container.value.as<PickleObject>()) items = &object->parts->items;
    if (items == nullptr) fail("expected a list, found {}", container.value.kind());
    for (Operand& operand : operands) items->push_back(set_item(operand, container.extent, identity(container.value)));
    refresh(container);
  }
  void set_items(std::vector<Operand> operands) {
    Operand& container = open_container();
    PickleEntries* entries = nullptr;
    if (const auto* dict = container.value.as<PickleDict>()) entries = dict->entries.get();
    if (const auto* object = container.value.as<PickleObject>()) entries = &object->parts->entries;
    if (entries == nullptr) fail("expected a dict, found {}", container.value.kind());
    if (operands.size() % 2 != 0) fail("a dict has {} keys and values, expected pairs", operands.size());
    for (size_t i = 0; i < operands.size(); i += 2) {
      PickleValue key = set_item(operands[i], container.extent, identity(container.value));
      entries->emplace_back(std::move(key), set_item(operands[i + 1], container.extent, identity(container.value)));
    }
    refresh(container);
  }
  // Updates the extent for copies in the memo, which have the extent at the time of the copy.
  void refresh(const Operand& container) { extents_[identity(container.value)] = container.extent; }

  // Counts copied texts, because a few instructions could use all memory.
  void count_copy(const PickleValue& value) {
    if (const auto* text = value.as<std::string>()) copied_ += text->size();
    if (const auto* bytes = value.as<PickleBytes>()) copied_ += bytes->bytes.size();
    if (const auto* big = value.as<PickleBigInteger>()) copied_ += big->bytes.size();
    if (const auto* global = value.as<PickleGlobal>()) copied_ += global->module.size() + global->name.size();
    if (copied_ > kMaxCopied) fail("texts are repeated to more than {} bytes", kMaxCopied);
  }
  void store_in_memo(uint32_t index) {
    count_copy(top().value);
    memo_[index] = top();
  }
  void load_from_memo(uint32_t index) {
    const auto found = memo_.find(index);
    if (found == memo_.end()) fail("value {} of the memo does not exist", index);
    count_copy(found->second.value);
    Operand operand = found->second;
    const auto extent = extents_.find(identity(operand.value));
    if (extent != extents_.end()) operand.extent = extent->second;
    push(std::move(operand.value), operand.extent);
  }

  [[nodiscard]] bool is_allowed(const std::string& name) const {
    return allowed_.contains(name) || allowed_.contains(name.substr(0, name.find('.')) + ".*");
  }
  void push_global(PickleGlobal global) {
    if (!is_allowed(global.str())) {
      fail(
          "it names {}, which is not read: only numbers, texts, containers and tensors are; a program that is in a "
          "checkpoint is not run{}",
          quote_for_terminal(global.str()), remedy_for(global.str()));
    }
    push(std::move(global));
  }
  void reduce() {
    Operand arguments = pop();
    const Operand callee = pop();
    const auto* global = callee.value.as<PickleGlobal>();
    const auto* tuple = arguments.value.as<PickleTuple>();
    if (global == nullptr || tuple == nullptr) {
      fail("a call is of {} with {}, expected a name and a tuple", callee.value.kind(), arguments.value.kind());
    }
    // The same tuple can be used for many calls.
    pushed_bytes_ += static_cast<int64_t>(tuple->items->size());
    if (pushed_bytes_ > kMaxValues) fail("calls have more than {} values", kMaxValues);
    const bool is_last_call = tuple->items.use_count() == 1;  // no other reference exists
    for (const PickleValue& item : *tuple->items) {
      if (!is_last_call) count_copy(item);
    }
    auto parts = std::make_shared<PickleObject::Parts>();
    parts->global = *global;
    parts->arguments = is_last_call ? std::move(*tuple->items) : *tuple->items;
    push(PickleObject{std::move(parts)}, arguments.extent);
  }
  void build() {
    Operand state = pop();
    Operand& container = open_container();
    const auto* object = container.value.as<PickleObject>();
    if (object == nullptr) fail("expected an object, found {}", container.value.kind());
    object->parts->state = set_item(state, container.extent, identity(container.value));
    refresh(container);
  }
  void push_persistent() {
    Operand id = pop();
    const auto* tuple = id.value.as<PickleTuple>();
    if (tuple == nullptr) fail("a storage is named by {}, expected a tuple", id.value.kind());
    push(PicklePersistent{tuple->items}, id.extent);
  }
  void push_integer(std::string_view bytes) {
    if (bytes.size() > 8) return push(PickleBigInteger{std::string(bytes)});
    int64_t value = 0;
    std::memcpy(&value, bytes.data(), bytes.size());
    const auto unused = static_cast<int>(64 - 8 * bytes.size());
    // Extends the sign.
    if (!bytes.empty()) value = static_cast<int64_t>(static_cast<uint64_t>(value) << unused) >> unused;
    push(value);
  }

  void step(char instruction);
  bool execute_number_opcode(char instruction);
  bool execute_text_opcode(char instruction);
  bool execute_container_opcode(char instruction);
  bool execute_memo_opcode(char instruction);
  bool execute_object_opcode(char instruction);

  std::string_view pickle_;
  const AllowedGlobals& allowed_;
  const Origin& origin_;
  uint64_t at_ = 0, instruction_ = 0, copied_ = 0;
  int64_t pushed_bytes_ = 0;
  bool ended_ = false;
  std::vector<Operand> stack_;
  std::vector<size_t> marks_;  // stack heights
  std::unordered_map<uint32_t, Operand> memo_;
  std::unordered_set<std::shared_ptr<const void>> frozen_;  // kept alive, because identities are addresses
  std::unordered_map<const void*, Extent> extents_;
};

void Unpickler::step(char instruction) {
  if (instruction == '.') {  // STOP
    ended_ = true;
  } else if (instruction == '\x80') {  // PROTO
    const auto protocol = number<uint8_t>();
    if (protocol < 2 || protocol > 5) fail("protocol {} is not read, 2 to 5 are", protocol);
  } else if (instruction == '\x95') {  // FRAME: a hint for reading ahead
    number<uint64_t>();
  } else if (!execute_number_opcode(instruction) && !execute_text_opcode(instruction) &&
             !execute_container_opcode(instruction) && !execute_memo_opcode(instruction) &&
             !execute_object_opcode(instruction)) {
    fail("instruction 0x{:02x} is not read", static_cast<uint8_t>(instruction));
  }
}

bool Unpickler::execute_number_opcode(char instruction) {
  switch (instruction) {
    case 'N':
      push(PickleNone{});
      return true;
    case '\x88':
      push(true);
      return true;
    case '\x89':
      push(false);
      return true;
    case 'K':
      push(int64_t{number<uint8_t>()});
      return true;
    case 'M':
      push(int64_t{number<uint16_t>()});
      return true;
    case 'J':
      push(int64_t{number<int32_t>()});
      return true;
    case '\x8a':
      push_integer(take(number<uint8_t>()));
      return true;
    case '\x8b':
      push_integer(take(number<uint32_t>()));
      return true;
    case 'G': {  // big-endian
      auto bytes = std::string(take(8));
      std::reverse(bytes.begin(), bytes.end());
      double value = 0;
      std::memcpy(&value, bytes.data(), sizeof(value));
      push(value);
      return true;
    }
    default:
      return false;
  }
}

bool Unpickler::execute_text_opcode(char instruction) {
  switch (instruction) {
    case 'X':
      push(std::string(take(number<uint32_t>())));
      return true;
    case '\x8c':
      push(std::string(take(number<uint8_t>())));
      return true;
    case '\x8d':
      push(std::string(take(number<uint64_t>())));
      return true;
    case 'T':
      push(std::string(take(number<uint32_t>())));
      return true;
    case 'U':
      push(std::string(take(number<uint8_t>())));
      return true;
    case 'B':
      push(PickleBytes{std::string(take(number<uint32_t>()))});
      return true;
    case 'C':
      push(PickleBytes{std::string(take(number<uint8_t>()))});
      return true;
    case '\x8e':
      push(PickleBytes{std::string(take(number<uint64_t>()))});
      return true;
    default:
      return false;
  }
}

bool Unpickler::execute_container_opcode(char instruction) {
  switch (instruction) {
    case '(':
      marks_.push_back(stack_.size());
      return true;
    case '0':
      static_cast<void>(pop());
      return true;
    case '1':
      static_cast<void>(pop_to_mark());
      return true;
    case ']':
      push(PickleList{});
      return true;
    case '}':
      push(PickleDict{});
      return true;
    case ')':
      push(PickleTuple{});
      return true;
    case 't':
      push_tuple(pop_to_mark());
      return true;
    case '\x85':
      push_last_as_tuple(1);
      return true;
    case '\x86':
      push_last_as_tuple(2);
      return true;
    case '\x87':
      push_last_as_tuple(3);
      return true;
    case 'a': {
      std::vector<Operand> one;
      one.push_back(pop());
      append(std::move(one));
      return true;
    }
    case 'e':
      append(pop_to_mark());
      return true;
    case 's': {
      std::vector<Operand> pair;
      pair.push_back(pop());
      pair.insert(pair.begin(), pop());
      set_items(std::move(pair));
      return true;
    }
    case 'u':
      set_items(pop_to_mark());
      return true;
    default:
      return false;
  }
}

bool Unpickler::execute_memo_opcode(char instruction) {
  switch (instruction) {
    case 'q':
      store_in_memo(number<uint8_t>());
      return true;
    case 'r':
      store_in_memo(number<uint32_t>());
      return true;
    case '\x94':
      store_in_memo(static_cast<uint32_t>(memo_.size()));
      return true;
    case 'h':
      load_from_memo(number<uint8_t>());
      return true;
    case 'j':
      load_from_memo(number<uint32_t>());
      return true;
    default:
      return false;
  }
}

bool Unpickler::execute_object_opcode(char instruction) {
  switch (instruction) {
    case 'c': {
      std::string module(line());
      push_global({std::move(module), std::string(line())});
      return true;
    }
    case '\x93': {  // STACK_GLOBAL
      const Operand name = pop();
      const Operand module = pop();
      const auto* name_text = name.value.as<std::string>();
      const auto* module_text = module.value.as<std::string>();
      if (name_text == nullptr || module_text == nullptr) fail("a name is of no texts");
      push_global({*module_text, *name_text});
      return true;
    }
    case 'R':
    case '\x81':
      reduce();
      return true;  // NEWOBJ: equivalent, because nothing is executed
    case 'b':
      build();
      return true;
    case 'Q':
      push_persistent();
      return true;
    default:
      return false;
  }
}

}  // namespace

PickleValue unpickle(std::string_view pickle, const AllowedGlobals& allowed, const Origin& origin) {
  return Unpickler(pickle, allowed, origin).run();
}

}  // namespace accelerate::archive
