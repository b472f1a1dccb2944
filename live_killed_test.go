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

// TestLiveViewSurvivesKilledRanks starts three ranks as processes. One of them serves the live
// view: a web page that shows the state of the ranks. The test kills rank 0, which serves the view
// first. Rank 1 must then serve it, and show ranks 1 and 2 and that a rank is lost. The same
// applies to rank 2 after rank 1 has been killed.

// watchedVariable marks a process as a rank of the test. Its value is the address of the live view.
const watchedVariable = "SYMMEM_TEST_WATCHED"

// runWatchedRank runs this process as a rank of the test and returns its exit status. The rank
// repeats a barrier until another rank is lost, and then waits until its standard input is closed.
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
	rt.Close()                           // returns the loss of a rank again
	return 0
}

// fetch makes a GET request with an access token and returns the body of the response. It fails if
// the status is not 200.
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

// answeringRanks lists the ranks whose state is in the view. Other ranks have an error instead.
func answeringRanks(m live.Machine) (ranks []int) {
	for i := range m.Ranks {
		if m.Ranks[i].Error == "" {
			ranks = append(ranks, m.Ranks[i].Rank)
		}
	}

	return ranks
}

// unusedAddress returns a TCP address of this machine that no process uses now.
func unusedAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "localhost:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// TestLiveViewSurvivesKilledRanks kills rank 0 and then rank 1. Each time, the next rank must serve
// the view and the metrics, which must say which ranks are up.
func TestLiveViewSurvivesKilledRanks(t *testing.T) {
	requireRanks(t, lostRanks)
	useLiveFolder(t) // separates the job from other jobs on this machine
	address := unusedAddress(t)
	store := "unix:@symmem-test-" + rand.Text()
	var processes []*exec.Cmd
	var inputs []io.Closer
	for number := range lostRanks {
		c, input := startWatchedRank(t, store, address, number)
		processes = append(processes, c)
		inputs = append(inputs, input)
	}

	const lastRank = lostRanks - 1
	var token string
	for server := range lostRanks { // the ranks before server have been killed
		token = awaitView(t, address, server, token)
		checkMetrics(t, address, server)
		if server < lastRank {
			_ = processes[server].Process.Kill()
			_ = processes[server].Wait() // the error says that the process was killed
		}
	}

	_ = inputs[lastRank].Close() // ends the last rank
	if err := processes[lastRank].Wait(); err != nil {
		t.Errorf("the last rank failed: %v\n%s", err, processes[lastRank].Stdout)
	}

	if text, err := fetch(address, "/metrics", ""); err == nil {
		t.Errorf("got metrics %q after all ranks have exited, want an error", text)
	}
}

// awaitView waits until the rank server serves the view, which shows the ranks from server on. If
// earlier ranks have been killed, it must also show their loss. It returns the latest access token.
func awaitView(t *testing.T, address string, server int, token string) string {
	t.Helper()
	remaining := []int{0, 1, 2}[server:]
	await(t, fmt.Sprintf("rank %d serves ranks %v", server, remaining), func() bool {
		token = jobToken(token)
		text, err := fetch(address, "/debug/symmem", token)
		var view live.Machine
		if err != nil || json.Unmarshal([]byte(text), &view) != nil {
			return false
		}

		showsRanks := view.ServedBy == server && slices.Equal(answeringRanks(view), remaining)
		hasLoss := server > 0
		showsLoss := strings.Contains(faults(view), "lost")
		return showsRanks && (showsLoss || !hasLoss)
	})
	return token
}

// checkMetrics checks the metrics of rank firstUp: they must show the ranks before it as down, and
// the others as up.
func checkMetrics(t *testing.T, address string, firstUp int) {
	t.Helper()
	const noToken = "" // metrics need none
	metrics, err := fetch(address, "/metrics", noToken)
	if err != nil {
		t.Errorf("reading the metrics from rank %d: %v", firstUp, err)
		return
	}

	for number := range lostRanks {
		isUp := 0
		if number >= firstUp {
			isUp = 1
		}

		want := fmt.Sprintf("symmem_up{rank=\"%d\"} %d\n", number, isUp)
		if !strings.Contains(metrics, want) {
			t.Errorf("metrics of rank %d lack %q:\n%.2000s", firstUp, want, metrics)
		}
	}
}

// jobToken returns the access token of the only job. If there is no job at the moment, it returns
// the token from an earlier call.
func jobToken(earlier string) string {
	jobs, _ := live.Jobs(live.Root()) // empty after an error
	for _, job := range jobs {
		if found, err := live.Token(job); err == nil {
			return found
		}
	}

	return earlier
}

// startWatchedRank starts a rank, which exits when the returned Closer is closed.
func startWatchedRank(t *testing.T, store, address string, number int) (*exec.Cmd, io.Closer) {
	t.Helper()
	const noRound = ""  // rounds are for other tests
	const noVictim = -1 // no rank kills itself
	c := rankCommand(
		t, store, noRound, number, lostRanks, noVictim, watchedVariable+"="+address)
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
