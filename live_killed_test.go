package symmem_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"symmem"
	"symmem/internal/live"
)

// watchedVariable marks a process as a rank of TestLiveViewSurvivesKilledRanks. Its value is the
// address of the live view, the web page about the ranks.
const watchedVariable = "SYMMEM_TEST_WATCHED"

// runWatchedRank runs this process as a rank of TestLiveViewSurvivesKilledRanks. The rank repeats
// a collective until another rank is lost, waits until its standard input is closed, and returns
// its exit status.
func runWatchedRank() int {
	number, _ := strconv.Atoi(os.Getenv(rankVariable)) // the test has set both to integers
	size, _ := strconv.Atoi(os.Getenv(sizeVariable))
	ctx := context.Background()
	rt, err := symmem.Open(ctx, withBackend(symmem.Options{
		Rank: number, Size: size, Store: os.Getenv(storeVariable), Timeout: time.Minute,
		HTTP: os.Getenv(watchedVariable),
	}))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	for err == nil {
		err = rt.World().Barrier(ctx, nil)
		if err == nil {
			err = rt.DefaultStream().Synchronize(ctx)
		}
	}
	_, _ = io.Copy(io.Discard, os.Stdin) // an error also means that the input has ended
	rt.Close()                           // returns the loss of a rank
	return 0
}

func fetch(address, path, token string) (string, error) {
	request, err := http.NewRequest(http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		return "", err
	}
	request.Header.Set("Authorization", "Bearer "+token)
	client := &http.Client{
		Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true},
	}
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d: %s", response.StatusCode, body)
	}
	return string(body), err
}

// answeringRanks lists the ranks that have described their state in the page, and returns the rank
// that serves the page.
func answeringRanks(m live.Machine) (ranks []int, servedBy int) {
	for i := range m.Ranks {
		if m.Ranks[i].Error == "" {
			ranks = append(ranks, m.Ranks[i].Rank)
		}
	}
	return ranks, m.ServedBy
}

func unusedAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "localhost:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// TestLiveViewSurvivesKilledRanks kills two of three ranks, one after the other: the rank that
// serves the live view. Each time, the next rank must serve it and show the remaining ranks and
// their fault.
func TestLiveViewSurvivesKilledRanks(t *testing.T) {
	requireRanks(t, lostRanks)
	useLiveFolder(t)
	address, store := unusedAddress(t), "unix:@symmem-test-"+rand.Text()
	var ranks []*exec.Cmd
	var inputs []io.Closer
	for number := range lostRanks {
		c, input := startWatchedRank(t, store, address, number)
		ranks, inputs = append(ranks, c), append(inputs, input)
	}
	var token string
	for number := range lostRanks {
		remaining := []int{0, 1, 2}[number:]
		await(t, fmt.Sprintf("rank %d serves ranks %v", number, remaining), func() bool {
			token = jobToken(token)
			text, err := fetch(address, "/debug/symmem", token)
			var m live.Machine
			if err != nil || json.Unmarshal([]byte(text), &m) != nil {
				return false
			}
			answering, servedBy := answeringRanks(m)
			return servedBy == number && slices.Equal(answering, remaining) &&
				(number == 0 || strings.Contains(faults(m), "lost"))
		})
		metrics, err := fetch(address, "/metrics", "")
		for rank := range lostRanks {
			isUp := 0
			if rank >= number {
				isUp = 1
			}
			want := fmt.Sprintf("symmem_up{rank=\"%d\"} %d\n", rank, isUp)
			if err != nil || !strings.Contains(metrics, want) {
				t.Errorf("metrics of rank %d lack %q (%v):\n%.2000s", number, want, err, metrics)
			}
		}
		if number < lostRanks-1 {
			_ = ranks[number].Process.Kill()
			_ = ranks[number].Wait()
		}
	}
	_ = inputs[lostRanks-1].Close()
	if err := ranks[lostRanks-1].Wait(); err != nil {
		t.Errorf("the last rank failed: %v\n%s", err, ranks[lostRanks-1].Stdout)
	}
	if text, err := fetch(address, "/metrics", ""); err == nil {
		t.Errorf("got metrics %q after all ranks have exited, want an error", text)
	}
}

// jobToken returns the access token of the only job, or the given token if there is no job.
func jobToken(token string) string {
	jobs, _ := live.Jobs(live.Root())
	for _, job := range jobs {
		if found, err := live.Token(job); err == nil {
			return found
		}
	}
	return token
}

// startWatchedRank starts a rank, which exits when the returned Closer is closed.
func startWatchedRank(t *testing.T, store, address string, number int) (*exec.Cmd, io.Closer) {
	t.Helper()
	c := rankCommand(t, store, "", number, lostRanks, -1, watchedVariable+"="+address)
	input, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
		if t.Failed() {
			t.Logf("rank %d printed %s", number, c.Stdout.(*bytes.Buffer))
		}
	})
	return c, input
}
