// SPDX-License-Identifier: Apache-2.0
#include "accelerate/nn/compiled_file.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>

#include "accelerate/archive/zip.hpp"
#include "accelerate/base/log.hpp"
#include "accelerate/nn/compiled_host.hpp"

namespace accelerate::nn::compiled {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kOperation = "CompiledModule";

bool is_in_program_folder(const fs::path& file) {
  std::error_code ignored;
  const fs::path folder = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  return !folder.empty() && std::ranges::mismatch(folder, file).in1 == folder.end();
}

// A package is machine code, and loading executes it.
void check_trust(const PackageFile& package) {
  const std::string& path = package.origin.path;
  if ((package.identity.st_mode & S_IWOTH) != 0) {
    base::fail(ErrorKind::usage, {}, kOperation,
               "{}: every user can write this file, and loading it executes its code; remove the permission with chmod "
               "o-w, or set CompiledOptions::trusted",
               path);
  }
  if (is_in_program_folder(package.resolved_path)) return;
  base::log_once(base::LogLevel::warning, {},
                 "{}: {} is outside the program's folder, and loading it executes its code; set "
                 "CompiledOptions::trusted if you know its origin",
                 kOperation, path);
}

}  // namespace

void check_unchanged(const PackageFile& package) {
  struct stat now {};
  const struct stat& then = package.identity;
  const bool is_same = ::stat(package.resolved_path.c_str(), &now) == 0 && now.st_dev == then.st_dev &&
                       now.st_ino == then.st_ino && now.st_size == then.st_size &&
                       now.st_mtim.tv_sec == then.st_mtim.tv_sec && now.st_mtim.tv_nsec == then.st_mtim.tv_nsec;
  if (is_same) return;
  package.origin.fail(ErrorKind::io,
                      "the file was changed, replaced or removed after it was verified, so its code is not executed; "
                      "keep it until the first forward on each device");
}

PackageFile open_package(const std::string& path, bool trusted) {
  PackageFile package{.origin = {.path = path, .operation = std::string(kOperation)}};
  package.map = std::make_shared<archive::MappedFile>(path, kOperation);
  package.resolved_path = fs::canonical(path).string();
  ::stat(package.resolved_path.c_str(), &package.identity);
  const std::string_view file = package.map->text();
  const auto members = archive::read_zip(file, package.origin);
  const auto find = [&](std::string_view name) {
    const auto found =
        std::ranges::find_if(members, [&](const archive::ZipMember& m) { return m.name.ends_with(name); });
    if (found == members.end()) {
      package.origin.broken(
          "the file has no member {}, so tools/export_compiled.py did not write it; export the module "
          "with that tool",
          name.substr(1));
    }
    return archive::member_bytes(file, *found);
  };
  const auto record = find("/extra/accelerate.json");
  package.weights = find("/extra/accelerate_weights.bin");
  for (const auto& member : members) archive::check_member(file, member, package.origin);
  package.record = read_record(record, package.weights.size(), package.origin);
  check_host(package.record, this_host(), package.origin);
  if (!trusted) check_trust(package);
  return package;
}

}  // namespace accelerate::nn::compiled
