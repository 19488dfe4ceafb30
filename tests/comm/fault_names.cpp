// SPDX-License-Identifier: Apache-2.0
// A name server that does not answer.
#include <dlfcn.h>
#include <netdb.h>
#include <unistd.h>

#include <string_view>

// Replaces the function of the C library.
extern "C" int getaddrinfo(const char* node, const char* service, const addrinfo* hints, addrinfo** found) {
  static const auto next = reinterpret_cast<decltype(&getaddrinfo)>(::dlsym(RTLD_NEXT, "getaddrinfo"));
  if (node != nullptr && std::string_view(node) == "unanswered.example") ::sleep(100);
  return next(node, service, hints, found);
}
