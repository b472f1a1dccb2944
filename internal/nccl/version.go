package nccl

import "fmt"

// VersionSuspend is the first version that can suspend communicators, 2.29.7.
const VersionSuspend = 22907

// VersionWindows is the first version with symmetric windows, 2.27.3.
const VersionWindows = 22703

// VersionText formats a version code, for example 22809 as "2.28.9". Up to NCCL 2.8, version codes
// have four digits (NCCL_VERSION in nccl.h).
func VersionText(code int) string {
	major, minor := code/10000, code/100%100
	if code < 10000 {
		major, minor = code/1000, code/100%10
	}

	return fmt.Sprintf("%d.%d.%d", major, minor, code%100)
}
