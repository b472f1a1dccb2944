package live

import (
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"

	"symmem/internal/page/pagetest"
)

// openChanging opens the Server of a rank that reports a pool and a wait. While differ is set, one
// request of rank 1 has a different size.
func openChanging(t *testing.T, rank int, differ *atomic.Bool) *Server {
	t.Helper()
	s, err := Open(Config{
		Job: "job", Rank: rank, Address: "localhost:0", Log: slog.New(slog.DiscardHandler),
		Snapshot: func(events int) Snapshot {
			p := newHistory(20)
			if rank == 1 && differ.Load() {
				p.Recent[8][5]++
			}

			p.Recent = p.Recent[:min(events, len(p.Recent))]
			s := machineOf(p, p).Ranks[rank]
			s.Waits = example(rank).Waits
			return s
		},
	})
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// TestPageInBrowser opens the page at a URL that contains the token. The page must show the waits
// of the ranks, and a difference between the ranks that arises while the page is open.
func TestPageInBrowser(t *testing.T) {
	useFolder(t)
	var differ atomic.Bool
	s := openChanging(t, 0, &differ)
	openChanging(t, 1, &differ)
	s.Start()
	url := "http://" + waitForAddress(t, s) + "/?token=" + s.token
	p := pagetest.Open(t).Open(t, url, pagetest.Screen{Width: 1000, Height: 800})
	p.WaitUntilPainted()
	if text := p.Text("#pending"); !strings.Contains(text, "AllReduce 7 of group") {
		t.Errorf("pending = %q; want the waits of both ranks", text)
	}

	differ.Store(true)
	p.Wait(`document.getElementById("verdict").textContent.includes("The ranks differ")`)
	if text := p.Text("body"); !strings.Contains(text, "different size") {
		t.Errorf("page = %q; want it to name the difference", text)
	}

	for _, e := range p.Errors() {
		t.Errorf("error on the page: %s", e)
	}
}
