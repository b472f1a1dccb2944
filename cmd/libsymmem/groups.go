package main

// #include "shim.h"
import "C"

import (
	"fmt"
	"unsafe"

	"symmem"
	"symmem/cmd/libsymmem/internal/binding"
)

// Exported functions implement symmem.h: goGroupOpen implements symmem_group_open, for example.

// goWorld stores the handle of the group of all ranks.
//
//export goWorld
func goWorld(group *C.uint64_t) C.int {
	return store(group, "the group", library.World)
}

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

// maxRanks limits the list of ranks, so that an uninitialized count is an error.
const maxRanks = 1 << 20

// groupArguments returns a group's name, a string of length bytes, and its list of count ranks.
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

// goGroupError returns and stores the error with which the group has failed.
//
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
		released, err := library.SuspendGroup(uint64(group))
		if err != nil {
			return err
		}

		if releasedBytes != nil { // null is permitted
			*releasedBytes = C.uint64_t(released)
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

//export goExplain
func goExplain(
	group C.uint64_t, operation C.int, count C.int64_t, dataType C.int, send, recv unsafe.Pointer,
	capacity C.size_t, text *C.char, length *C.size_t,
) C.int {
	return copyText(capacity, text, length, func() (string, error) {
		return library.Explain(uint64(group), &binding.Arguments{
			Operation: int(operation), Count: int64(count), Type: int(dataType),
			Send: uintptr(send), Recv: uintptr(recv),
		})
	})
}
