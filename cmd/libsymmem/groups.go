package main

// #include "shim.h"
import "C"

import (
	"fmt"
	"unsafe"

	"symmem"
)

// The exported functions of this file implement functions of symmem.h with similar names: goWorld
// implements symmem_world. They return SYMMEM_OK or SYMMEM_ERR_*. A group is passed by a number,
// its handle.

//export goWorld
func goWorld(group *C.uint64_t) C.int {
	return store(group, "the group", library.World)
}

// maxRanks is the maximum length of a list of ranks. It limits how much memory a wrong length can
// make this library read.
const maxRanks = 1 << 20

//export goGroupOpen
func goGroupOpen(
	length C.size_t, name *C.char, count C.size_t, ranks *C.int32_t, group *C.uint64_t,
) C.int {
	return store(group, "the group", func() (uint64, error) {
		groupName, rankList, err := groupArguments(length, name, count, ranks)
		if err != nil {
			return 0, err
		}
		return library.OpenGroup(groupName, rankList)
	})
}

// groupArguments copies the name and the ranks of a group. The name has length bytes, and there are
// count ranks.
func groupArguments(
	length C.size_t, name *C.char, count C.size_t, ranks *C.int32_t,
) (groupName string, rankList []int, err error) {
	groupName, err = textOf(length, name)
	if err != nil {
		return "", nil, err
	}
	if ranks == nil {
		return "", nil, nullPointerError("the list of ranks")
	}
	if count > maxRanks {
		return "", nil, fmt.Errorf("opening a group of %d ranks; the maximum is %d: %w", count,
			maxRanks, symmem.ErrInvalid)
	}
	for _, rank := range unsafe.Slice(ranks, int(count)) {
		rankList = append(rankList, int(rank))
	}
	return groupName, rankList, nil
}

//export goGroupClose
func goGroupClose(group C.uint64_t) C.int {
	return guard(func() error { return library.CloseGroup(uint64(group)) })
}

//export goGroupDescribe
func goGroupDescribe(group C.uint64_t, capacity C.size_t, text *C.char, length *C.size_t) C.int {
	return copyText(capacity, text, length, func() (string, error) {
		return library.DescribeGroup(uint64(group))
	})
}

//export goGroupError
func goGroupError(group C.uint64_t) C.int {
	return guard(func() error { return library.GroupError(uint64(group)) })
}

//export goGroupAbort
func goGroupAbort(group C.uint64_t) C.int {
	return guard(func() error { return library.AbortGroup(uint64(group)) })
}

//export goGroupSetTimeout
func goGroupSetTimeout(group C.uint64_t, timeoutMS C.int64_t) C.int {
	return guard(func() error { return library.SetTimeout(uint64(group), int64(timeoutMS)) })
}

//export goGroupSuspend
func goGroupSuspend(group C.uint64_t, releasedBytes *C.uint64_t) C.int {
	return guard(func() error {
		bytes, err := library.SuspendGroup(uint64(group))
		if err != nil {
			return err
		}
		if releasedBytes != nil { // the caller may pass null
			*releasedBytes = C.uint64_t(bytes)
		}
		return nil
	})
}

//export goGroupResume
func goGroupResume(group C.uint64_t) C.int {
	return guard(func() error { return library.ResumeGroup(uint64(group)) })
}

//export goGroupSetPath
func goGroupSetPath(group C.uint64_t, path C.int) C.int {
	return guard(func() error { return library.SetPath(uint64(group), int(path)) })
}
