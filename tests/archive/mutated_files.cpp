// SPDX-License-Identifier: Apache-2.0
// mutated_files SECONDS [FORMAT ...]: fuzzing of the readers of checkpoint files.
#include <string>

#include "accelerate/archive/dcp_folder.hpp"
#include "accelerate/archive/manifest.hpp"
#include "accelerate/archive/pickle.hpp"
#include "accelerate/archive/safetensors.hpp"
#include "accelerate/archive/torch_file.hpp"
#include "accelerate/archive/unpickle.hpp"
#include "accelerate/archive/zip.hpp"
#include "tests/archive/dcp_files.hpp"
#include "tests/mutation.hpp"

using namespace accelerate::archive;
using namespace std::string_literals;
using mutation::Format;
namespace fs = std::filesystem;

namespace {

const Origin origin{.path = "x", .operation = "load"};

std::string file_in(const fs::path& folder) { return mutation::contents(folder / "x"); }

Format safetensors_files() {
  std::vector<SafetensorsEntry> tensors{{.name = "a", .dtype = "F32", .shape = {2, 3}},
                                        {.name = "b", .dtype = "I64"},
                                        {.name = "c", .dtype = "BOOL", .shape = {3}}};
  std::string file = write_safetensors(tensors, {{"format", "pt"}}, "save");
  return {.whole = {file + std::string(24 + 8 + 3, 'x'), "\x15\0\0\0\0\0\0\0{\"__metadata__\":null}"s},
          .read = [](const fs::path& folder, uint64_t) { (void)read_safetensors(file_in(folder), origin); }};
}

Format zip_files() {
  StringSink sink;
  ZipWriter zip(sink);
  zip.add("a/data.pkl", "hello");
  zip.add("a/data/0", std::string(100, 'x'));
  zip.add("a/version", "3");
  zip.finish();
  const std::string before_1_6 = "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9";
  return {.whole = {sink.text(), before_1_6 + "PK\x05\x06" + std::string(40, '\0')},
          .read = [](const fs::path& folder, uint64_t) {
            const std::string file = file_in(folder);
            for (const auto& member : read_zip(file, origin)) check_member(file, member, origin);
          }};
}

Format pickles() {
  PickleDict dict;
  for (const int64_t n : {int64_t{1}, int64_t{300}, int64_t{70000}, int64_t{1} << 40}) {
    dict.entries->emplace_back(std::to_string(n), n);
  }
  PickleList list;
  *list.items = {1.5, true, "x"s, PickleNone{}, PickleTuple{}, PickleBytes{"\x80"}};
  dict.entries->emplace_back("list"s, list);
  PickleObject object{std::make_shared<PickleObject::Parts>()};
  object.parts->global = {"collections", "OrderedDict"};
  object.parts->entries.emplace_back("k"s, int64_t{3});
  object.parts->state = PickleDict{};
  dict.entries->emplace_back("object"s, object);
  PicklePersistent storage;
  *storage.id = {"storage"s, PickleGlobal{"torch", "FloatStorage"}, "0"s};
  dict.entries->emplace_back("storage"s, storage);
  return {.whole = {pickle(dict), "\x80\x02]q\x00(]q\x01K\x01\x61h\x01\x65."s},
          .read = [](const fs::path& folder, uint64_t) {
            (void)pickle(
                unpickle(file_in(folder), {"collections.OrderedDict", "torch.FloatStorage", "_codecs.encode"}, origin));
          }};
}

// Only the pickle is mutated: mutated ZIP files are a separate format.
Format torch_files() {
  PicklePersistent storage;
  *storage.id = {"storage"s, PickleGlobal{"torch", "FloatStorage"}, "0"s, "cpu"s, int64_t{6}};
  PickleTuple shape, stride;
  *shape.items = {int64_t{2}, int64_t{3}};
  *stride.items = {int64_t{3}, int64_t{1}};
  PickleObject tensor{std::make_shared<PickleObject::Parts>()};
  tensor.parts->global = {"torch._utils", "_rebuild_tensor_v2"};
  tensor.parts->arguments = {storage, int64_t{0}, shape, stride, false, PickleNone{}};
  PickleObject parameter{std::make_shared<PickleObject::Parts>()};
  parameter.parts->global = {"torch._utils", "_rebuild_parameter"};
  parameter.parts->arguments = {tensor, true, PickleNone{}};
  PickleDict dict;
  dict.entries->emplace_back("weight"s, parameter);
  PickleDict attributes, bits;
  attributes.entries->emplace_back("tag"s, int64_t{1});
  bits.entries->emplace_back("conj"s, true);
  bits.entries->emplace_back("neg"s, true);
  PicklePersistent complex_storage;
  *complex_storage.id = {"storage"s, PickleGlobal{"torch", "ComplexFloatStorage"}, "0"s, "cpu"s, int64_t{3}};
  PickleTuple pair, arguments;
  *pair.items = {int64_t{1}};
  *arguments.items = {complex_storage, int64_t{0}, pair, pair, false, PickleNone{}, bits};
  PickleObject with_attributes{std::make_shared<PickleObject::Parts>()};
  with_attributes.parts->global = {"torch._tensor", "_rebuild_from_type_v2"};
  with_attributes.parts->arguments = {PickleGlobal{"torch._utils", "_rebuild_tensor_v2"},
                                      PickleGlobal{"torch", "Tensor"}, arguments, attributes};
  PickleObject with_state{std::make_shared<PickleObject::Parts>()};
  with_state.parts->global = {"torch._utils", "_rebuild_parameter_with_state"};
  with_state.parts->arguments = {with_attributes, true, PickleNone{}, attributes};
  dict.entries->emplace_back("with_state"s, with_state);
  return {.whole = {pickle(dict)}, .read = [](const fs::path& folder, uint64_t) {
            StringSink sink;
            ZipWriter zip(sink);
            zip.add("a/data.pkl", file_in(folder));
            zip.add("a/data/0", std::string(24, 'x'));
            zip.finish();
            for (const auto& one : read_torch_file(sink.text(), origin).tensors) {
              if (one.is_contiguous()) (void)one.bytes_of(sink.text());
            }
          }};
}

Format manifests() {
  return {.whole = {write_manifest({.library = "test",
                                    .files = {{"m", 10, "x"}, {"n", 3, "y"}},
                                    .parts = {{"model", 0, {"m"}}},
                                    .ranges = {{"a", {3}, 0, 3, "m", "a"}}})},
          .read = [](const fs::path& folder, uint64_t) { (void)parse_manifest_file(file_in(folder), origin); }};
}

// The metadata is mutated; the items stay whole.
Format dcp_folders() {
  dcp_files::Builder builder;
  builder.add("a", dcp_files::tensor({4, 3}, {dcp_files::chunk({0, 0}, {3, 3}), dcp_files::chunk({3, 0}, {1, 3})}));
  builder.add_item("a", {0, 0}, {3, 3}, std::vector<float>(9));
  builder.add_item("a", {3, 0}, {1, 3}, std::vector<float>(3), "__1_0.distcp");
  builder.add_value("lr", 0.5);
  builder.add_path("a", {"model", "a"});
  return {.whole = {builder.metadata()}, .read = [builder](const fs::path& folder, uint64_t way) {
            const std::string metadata = file_in(folder);
            if (!fs::exists(folder / "__0_0.distcp")) builder.write(folder);
            std::ofstream(folder / ".metadata", std::ios::binary) << metadata;
            DcpFolder opened(folder, "load");
            for (const DcpTensor& tensor : opened.metadata().tensors) {
              std::string elements;
              const uint64_t begin = way % 3 == 0 ? tensor.elements / 2 : 0;
              opened.read(tensor, begin, tensor.elements, [&] {
                elements.resize((tensor.elements - begin) * (tensor.bits / 8));
                return elements.data();
              });
            }
            for (const DcpValue& value : opened.metadata().values) (void)opened.value(value);
          }};
}

}  // namespace

int main(int argc, char** argv) {
  return mutation::run_formats({{"safetensors", safetensors_files},
                                {"zip", zip_files},
                                {"pickle", pickles},
                                {"torch", torch_files},
                                {"manifest", manifests},
                                {"dcp", dcp_folders}},
                               argc, argv);
}
