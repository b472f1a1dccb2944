package sys

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Affinity returns the processors on which the calling thread may run, in ascending order.
func Affinity() ([]int, error) {
	const thisThread = 0
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(thisThread, &set); err != nil {
		return nil, fmt.Errorf("reading the processors of this thread: %w", err)
	}

	count := set.Count()
	processors := make([]int, 0, count)
	for processor := 0; len(processors) < count; processor++ {
		if set.IsSet(processor) {
			processors = append(processors, processor)
		}
	}

	return processors, nil
}

// SetAffinity binds the calling thread, and threads that it starts later, to one processor. The
// goroutine must be locked to the thread.
func SetAffinity(processor int) error {
	return bindThread(unix.Gettid(), processor)
}

// BindProcess binds all threads of this process to one processor.
func BindProcess(processor int) error {
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return fmt.Errorf("listing the threads of this process: %w", err)
	}

	for _, t := range threads {
		id, err := strconv.Atoi(t.Name())
		if err != nil {
			continue
		}

		// The thread may have exited since it was listed.
		if err := bindThread(id, processor); err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
	}

	return nil
}

func bindThread(thread, processor int) error {
	var set unix.CPUSet
	set.Set(processor)
	if err := unix.SchedSetaffinity(thread, &set); err != nil {
		return fmt.Errorf("binding thread %d to processor %d: %w", thread, processor, err)
	}

	return nil
}

// AffinityMaskBytes is the length of a mask with one bit for each of 1,024 processors.
const AffinityMaskBytes = 128

// AffinityMask returns Affinity as a mask, without processors above 1,023. Bit n%8 of byte n/8
// stands for processor n.
func AffinityMask() ([]byte, error) {
	allowed, err := Affinity()
	if err != nil {
		return nil, err
	}

	mask := make([]byte, AffinityMaskBytes)
	for _, p := range allowed {
		if p/8 < len(mask) {
			mask[p/8] |= 1 << (p % 8)
		}
	}

	return mask, nil
}
