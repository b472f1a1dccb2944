// The table of kernels. Build includes all kernels, then this file, and then writes an ENTRY for
// each kernel.
#pragma once
#include "lane.h"

template <auto Function>
struct Entry;

template <class Params, void (*Function)(Params)>
struct Entry<Function> {
	enum : size_t { bytes = sizeof(Params) };
	static void run(const void* params) { Function(*(const Params*)params); }
};

#define ENTRY(name) {#name, Entry<name>::bytes, Entry<name>::run}
