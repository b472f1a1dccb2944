package main

// #include "shim.h"
import "C"

//export goWorldOpen
func goWorldOpen(length C.size_t, options *C.char, world *C.uint64_t) C.int {
	return store(world, "the world", func() (uint64, error) {
		text, err := prepareOpen(length, options)
		if err != nil {
			return 0, err
		}
		return library.OpenWorld(text)
	})
}

//export goWorldClose
func goWorldClose(world C.uint64_t, force C.int) C.int {
	return guard(func() error { return library.CloseWorld(uint64(world), force != 0) })
}

//export goWorldDescribe
func goWorldDescribe(world C.uint64_t, capacity C.size_t, text *C.char, length *C.size_t) C.int {
	return copyText(capacity, text, length, func() (string, error) {
		return library.DescribeWorld(uint64(world))
	})
}

//export goWorldStats
func goWorldStats(world C.uint64_t, capacity C.size_t, text *C.char, length *C.size_t) C.int {
	return copyText(capacity, text, length, func() (string, error) {
		return library.WorldStats(uint64(world))
	})
}

//export goWorldSetCheck
func goWorldSetCheck(world C.uint64_t, level C.int) C.int {
	return guard(func() error { return library.SetWorldCheck(uint64(world), int(level)) })
}

//export goWorldGroupOpen
func goWorldGroupOpen(
	world C.uint64_t, length C.size_t, name *C.char, count C.size_t, ranks *C.int32_t,
	timeoutMS C.int64_t, group *C.uint64_t,
) C.int {
	return store(group, "the group", func() (uint64, error) {
		groupName, rankList, err := groupArguments(length, name, count, ranks)
		if err != nil {
			return 0, err
		}
		return library.OpenGroupIn(uint64(world), groupName, rankList, int64(timeoutMS))
	})
}
