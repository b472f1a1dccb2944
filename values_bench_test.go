package symmem_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"symmem"
)

// agreeingVariable contains the store address for the second process of BenchmarkAgree.
const agreeingVariable = "SYMMEM_TEST_AGREEING"

const (
	firstRank, secondRank = 0, 1

	// Both ranks pass these arguments to Agree.
	agreedName  = "batch size"
	agreedValue = 8
)

// openRankOfPair opens one of two ranks, which run in separate processes and meet at a store.
func openRankOfPair(rankNumber int, store string) (*symmem.Runtime, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return symmem.Open(ctx, symmem.Options{
		Rank: rankNumber, Size: 2, Store: store, Backend: "host", Timeout: time.Minute,
	})
}

// runAgreeingRank calls Agree until it returns a DeadlockError: the first rank has closed its
// Runtime.
func runAgreeingRank() (exitStatus int) {
	rt, err := openRankOfPair(secondRank, os.Getenv(agreeingVariable))
	for err == nil {
		err = rt.World().Agree(context.Background(), agreedName, agreedValue)
	}

	var deadlock *symmem.DeadlockError
	if errors.As(err, &deadlock) {
		err = rt.Close()
	}

	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}

	return 0
}

// BenchmarkAgree reports the median time per call, because the mean depends on the load of the
// machine. If barsVariable is set, the median must not exceed maxMedianNs.
func BenchmarkAgree(b *testing.B) {
	store := "unix:@symmem-test-" + rand.Text()
	// In the other process, TestMain calls runAgreeingRank.
	other := exec.Command(os.Args[0])
	other.Env = append(os.Environ(), agreeingVariable+"="+store)
	other.Stderr = os.Stderr
	if err := other.Start(); err != nil {
		b.Fatal(err)
	}

	rt, err := openRankOfPair(firstRank, store)
	if err != nil {
		b.Fatal(err)
	}

	const callsPerBatch, maxMedianNs = 200, 500
	var batchTimes []time.Duration
	b.ReportAllocs()
	begin := time.Now()
	calls := 0
	for b.Loop() {
		if err := rt.World().Agree(b.Context(), agreedName, agreedValue); err != nil {
			b.Fatal(err)
		}

		calls++
		if calls%callsPerBatch == 0 {
			batchTimes = append(batchTimes, time.Since(begin))
			begin = time.Now()
		}
	}

	slices.Sort(batchTimes)
	if len(batchTimes) > 0 {
		median := batchTimes[len(batchTimes)/2]
		medianNs := float64(median.Nanoseconds()) / callsPerBatch
		b.ReportMetric(medianNs, "median-ns/op")
		if os.Getenv(barsVariable) != "" && medianNs > maxMedianNs {
			b.Errorf("the median is %.0f ns, want at most %d", medianNs, maxMedianNs)
		}
	}

	if err := rt.Close(); err != nil {
		b.Error(err)
	}

	if err := other.Wait(); err != nil {
		b.Error(err)
	}
}
