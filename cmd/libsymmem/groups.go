package main

// #include "shim.h"
import "C"

import (
	"fmt"
	"unsafe"

	"symmem"
)

// goWorld implements symmem_world. It returns the handle of the group of all ranks.
//
//export goWorld
func goWorld(group *C.uint64_t) C.int {
	return store(group, "the group", library.World)
}

// maxRanks is the maximum length of an array with an element for each rank. It bounds the memory
// that this library reads if a length is invalid.
const maxRanks = 1 << 20

// goGroupOpen implements symmem_group_open.
//
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

// groupArguments copies the name of a group, of length bytes, and an array of count ranks.
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

// goGroupClose implements symmem_group_close.
//
//export goGroupClose
func goGroupClose(group C.uint64_t) C.int {
	return guard(func() error { return library.CloseGroup(uint64(group)) })
}

// goGroupDescribe implements symmem_group_describe.
//
//export goGroupDescribe
func goGroupDescribe(group C.uint64_t, capacity C.size_t, text *C.char, length *C.size_t) C.int {
	return copyText(capacity, text, length, func() (string, error) {
		return library.DescribeGroup(uint64(group))
	})
}

// goGroupError implements symmem_group_error.
//
//export goGroupError
func goGroupError(group C.uint64_t) C.int {
	return guard(func() error { return library.GroupError(uint64(group)) })
}

// goGroupAbort implements symmem_group_abort.
//
//export goGroupAbort
func goGroupAbort(group C.uint64_t) C.int {
	return guard(func() error { return library.AbortGroup(uint64(group)) })
}

// goGroupSetTimeout implements symmem_group_set_timeout.
//
//export goGroupSetTimeout
func goGroupSetTimeout(group C.uint64_t, timeoutMS C.int64_t) C.int {
	return guard(func() error { return library.SetTimeout(uint64(group), int64(timeoutMS)) })
}

// goGroupSuspend implements symmem_group_suspend.
//
//export goGroupSuspend
func goGroupSuspend(group C.uint64_t, releasedBytes *C.uint64_t) C.int {
	return guard(func() error {
		bytes, err := library.SuspendGroup(uint64(group))
		if err != nil {
			return err
		}

		if releasedBytes != nil { // null is permitted
			*releasedBytes = C.uint64_t(bytes)
		}

		return nil
	})
}

// goGroupResume implements symmem_group_resume.
//
//export goGroupResume
func goGroupResume(group C.uint64_t) C.int {
	return guard(func() error { return library.ResumeGroup(uint64(group)) })
}

// goGroupSetPath implements symmem_group_set_path.
//
//export goGroupSetPath
func goGroupSetPath(group C.uint64_t, path C.int) C.int {
	return guard(func() error { return library.SetPath(uint64(group), int(path)) })
}
