package live

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// testTimeout limits how long a test waits for something to happen.
const testTimeout = 30 * time.Second

// useFolder creates a folder and sets TMPDIR to it. The folder's path is short, because the
// kernel limits the length of a socket's path.
func useFolder(t *testing.T) {
	t.Helper()
	folder, err := os.MkdirTemp("/tmp", "live")
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { os.RemoveAll(folder) })
	t.Setenv("TMPDIR", folder)
}

// hostile is a name with markup, an escape sequence and invalid UTF-8.
const hostile = "<script>alert(1)</script>\x1b[31m\"'\xff"

// example returns the Snapshot of a rank with a wait, a failed group and a pool, all with
// hostile names.
func example(rank int) Snapshot {
	times := Times{Samples: 2, Seconds: 0.5, RecentSeconds: 0.001, RecentBytes: 1 << 20}
	return Snapshot{
		Rank: rank, Size: 4, GPU: -1, Backend: "host", Opened: time.Unix(1, 0),
		Waits: []Wait{{
			Group: hostile, InCall: "AllReduce 7 of group " + hostile, Since: time.Unix(2, 0),
			Seconds: 1.5, Ranks: []int{3}, Activity: map[int]string{3: "in no call of " + hostile},
		}},
		Groups: []Group{{
			ID: hostile, Ranks: []int{0, 1, 2, 3}, State: "failed", Fault: "rank 3 is lost",
			Machines: 1, Paths: map[string]uint64{"window": 9},
			Calls: []Calls{{
				Operation: "AllReduce", Path: "window", MinBytes: 1 << 20, MaxBytes: 2 << 20, Calls: 9,
				Bytes: 9 << 20, Submit: times, Run: &times,
			}},
		}},
		Pools: []Pool{{Domain: hostile, PoolStats: PoolStats{Used: 4096, Segments: 1}}},
	}
}

func openServer(t *testing.T, job string, rank int, address string) *Server {
	t.Helper()
	s, err := Open(Config{
		Job: job, Rank: rank, Address: address, Log: slog.New(slog.DiscardHandler),
		Snapshot: func(int) Snapshot { return example(rank) },
	})
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close of rank %d: %v", rank, err)
		}
	})
	return s
}

// waitFor polls until condition returns true. If that takes longer than testTimeout, the test fails
// with a message that contains event.
func waitFor(t *testing.T, event string, condition func() bool) {
	t.Helper()
	ticks := time.NewTicker(time.Millisecond)
	defer ticks.Stop()
	for begin := time.Now(); !condition(); <-ticks.C {
		if time.Since(begin) > testTimeout {
			t.Fatalf("%s has not happened after %v", event, testTimeout)
		}
	}
}

func waitForAddress(t *testing.T, s *Server) string {
	t.Helper()
	waitFor(t, fmt.Sprintf("the turn of rank %d to serve the address", s.cfg.Rank), func() bool {
		return s.Address() != ""
	})
	return s.Address()
}

type request struct {
	method, path, host, bearer, cookie string
	status                             int
	contains                           string
}

func (r *request) send(t *testing.T, address string) (*http.Response, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	method := r.method
	if method == "" {
		method = http.MethodGet
	}

	q, err := http.NewRequestWithContext(ctx, method, "http://"+address+r.path, nil)
	if err != nil {
		t.Fatal(err)
	}

	if r.host != "" {
		q.Host = r.host
	}

	if r.bearer != "" {
		q.Header.Set("Authorization", "Bearer "+r.bearer)
	}

	if r.cookie != "" {
		q.AddCookie(&http.Cookie{Name: cookieName, Value: r.cookie})
	}

	client := &http.Client{
		Transport:     &http.Transport{DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	response, err := client.Do(q)
	if err != nil {
		t.Fatalf("%s %s: %v", method, r.path, err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatalf("%s %s: %v", method, r.path, err)
	}

	return response, string(body)
}

func TestRequestsOverTCP(t *testing.T) {
	useFolder(t)
	s := openServer(t, "job", 0, "localhost:0")
	s.Start()
	address := waitForAddress(t, s)
	token := s.token
	for name, r := range map[string]request{
		"metrics":               {path: metricsPath, status: 200, contains: "symmem_up{rank=\"0\"} 1"},
		"page without token":    {path: "/", status: 401},
		"JSON without token":    {path: jsonPath, status: 401},
		"JSON with wrong token": {path: jsonPath, bearer: token + "x", status: 401},
		"wrong token in URL":    {path: "/?token=x", status: 401},
		"empty token in URL":    {path: "/?token=", status: 401},
		"wrong cookie":          {path: "/", cookie: "x", status: 401},
		"page":                  {path: "/", bearer: token, status: 200, contains: "data.bin"},
		"data":                  {path: dataPath, bearer: token, status: 200, contains: "AllReduce 7"},
		"data without token":    {path: dataPath, status: 401},
		"status":                {path: statusPath, bearer: token, status: 200, contains: "AllReduce 7"},
		"status without token":  {path: statusPath, status: 401},
		"events":                {path: jsonPath + "?events=9", bearer: token, status: 200},
		"too many events":       {path: jsonPath + "?events=9000", bearer: token, status: 400},
		"JSON":                  {path: jsonPath, bearer: token, status: 200, contains: `"version":1`},
		"cookie":                {path: dataPath, cookie: token, status: 200, contains: "AllReduce 7"},
		"HEAD":                  {method: "HEAD", path: "/", bearer: token, status: 200},
		"unknown path":          {path: "/debug/pprof/", bearer: token, status: 404},
		"path with dots":        {path: "/../debug/symmem", status: 401},
		"alive over TCP":        {path: alivePath, bearer: token, status: 404},
		"POST":                  {method: "POST", path: "/", bearer: token, status: 405},
		"DELETE of metrics":     {method: "DELETE", path: metricsPath, status: 405},
		"foreign host":          {path: metricsPath, host: "evil.example", status: 421},
		"foreign host and port": {path: "/", host: "evil.example:80", bearer: token, status: 421},
		"host of digits":        {path: metricsPath, host: "127.0.0.1.evil.example", status: 421},
		"localhost.evil":        {path: metricsPath, host: "localhost.evil.example", status: 421},
		"localhost":             {path: metricsPath, host: "LOCALHOST:1", status: 200},
		"IPv6":                  {path: metricsPath, host: "[::1]:9400", status: 200},
		"address of a pod":      {path: metricsPath, host: "10.1.2.3:9400", status: 200},
	} {
		response, body := r.send(t, address)
		if response.StatusCode != r.status || !strings.Contains(body, r.contains) {
			t.Errorf("%s: status %d, body %.300q; want status %d and %q", name, response.StatusCode,
				body, r.status, r.contains)
		}

		if strings.Contains(body, token) {
			t.Errorf("%s: response body contains the token", name)
		}

		if response.Header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s: response without Cache-Control: no-store", name)
		}
	}
}

func TestTokenInURLBecomesCookie(t *testing.T) {
	useFolder(t)
	s := openServer(t, "job", 0, "localhost:0")
	s.Start()
	r := request{path: "/?token=" + s.token}
	response, _ := r.send(t, waitForAddress(t, s))
	cookies := response.Cookies()
	if response.StatusCode != http.StatusSeeOther || response.Header.Get("Location") != "/" ||
		len(cookies) != 1 || cookies[0].Value != s.token || !cookies[0].HttpOnly ||
		cookies[0].SameSite != http.SameSiteStrictMode {
		t.Errorf("status %d, header %v; want a redirection to / with a strict cookie",
			response.StatusCode, response.Header)
	}
}

func TestOtherAddressesServeMetricsOnly(t *testing.T) {
	useFolder(t)
	s := openServer(t, "job", 0, "0.0.0.0:0")
	s.Start()
	_, port, _ := net.SplitHostPort(waitForAddress(t, s))
	address := net.JoinHostPort("127.0.0.1", port)
	for path, status := range map[string]int{metricsPath: 200, jsonPath: 403, "/": 403} {
		r := request{path: path, bearer: s.token}
		if response, body := r.send(t, address); response.StatusCode != status {
			t.Errorf("%s: status %d, body %q; want %d", path, response.StatusCode, body, status)
		}
	}
}

func readOver(t *testing.T, address, token string) Machine {
	t.Helper()
	r := request{path: jsonPath, bearer: token}
	response, body := r.send(t, address)
	var m Machine
	if err := json.Unmarshal([]byte(body), &m); err != nil {
		t.Fatalf("status %d, body %.300q: %v", response.StatusCode, body, err)
	}

	return m
}

func TestLowestRankServesAll(t *testing.T) {
	useFolder(t)
	listener, err := net.Listen("tcp", "localhost:0")
	if err != nil {
		t.Fatal(err)
	}

	address := listener.Addr().String()
	servers := []*Server{}
	for _, rank := range []int{10, 2, 7} {
		servers = append(servers, openServer(t, "job", rank, address))
	}

	for _, s := range servers {
		s.Start()
	}

	if err := listener.Close(); err != nil { // rank 2 tries again if the address was in use
		t.Fatal(err)
	}

	for _, want := range []struct {
		server *Server
		ranks  []int
	}{{servers[1], []int{2, 7, 10}}, {servers[2], []int{7, 10}}, {servers[0], []int{10}}} {
		m := readOver(t, waitForAddress(t, want.server), want.server.token)
		var ranks []int
		for i := range m.Ranks {
			if m.Ranks[i].Error == "" {
				ranks = append(ranks, m.Ranks[i].Rank)
			}
		}

		if m.ServedBy != want.server.cfg.Rank || !slices.Equal(ranks, want.ranks) {
			t.Errorf("rank %d serves ranks %v; want rank %d to serve ranks %v", m.ServedBy, ranks,
				want.server.cfg.Rank, want.ranks)
		}

		if err := want.server.Close(); err != nil {
			t.Errorf("Close of rank %d: %v", want.server.cfg.Rank, err)
		}
	}

	if _, err := os.Stat(servers[0].folder); !os.IsNotExist(err) {
		t.Errorf("Stat of the job's folder after the last Close: %v; want it to be removed", err)
	}
}

func TestRanksShareToken(t *testing.T) {
	useFolder(t)
	a, b := openServer(t, "job", 0, SocketsOnly), openServer(t, "job", 1, SocketsOnly)
	other := openServer(t, "other", 0, SocketsOnly)
	if a.token != b.token || len(a.token) < 20 || other.token == a.token {
		t.Errorf("tokens of the ranks = %q, %q, and of another job = %q; want one random token per job",
			a.token, b.token, other.token)
	}

	info, err := os.Stat(filepath.Join(a.folder, tokenFile))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("Stat of the token = %v, %v; want mode 0600", info, err)
	}
}

func TestWeakTokensAreRefused(t *testing.T) {
	useFolder(t)
	for _, token := range []string{
		"short", "0123456789abcde;", "0123456789 abcdef", strings.Repeat("x", 600),
	} {
		s, err := Open(Config{
			Job: "job", Address: SocketsOnly, Token: token, Log: slog.New(slog.DiscardHandler),
		})
		if err == nil {
			t.Errorf("Open with token %q succeeded; want an error (Close: %v)", token, s.Close())
		}
	}

	if jobs, err := Jobs(Root()); err != nil || len(jobs) > 0 {
		t.Errorf("Jobs = %v, %v; want none", jobs, err)
	}
}

func stall(t *testing.T, address string, n int) {
	t.Helper()
	for range n {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}

		t.Cleanup(func() { c.Close() })
	}
}

// TestSlowClientsAreClosed opens more connections than the server allows and sends no requests
// on them. After requestTimeout, the server must close them and serve other clients again.
func TestSlowClientsAreClosed(t *testing.T) {
	useFolder(t)
	s := openServer(t, "job", 0, "localhost:0")
	s.Start()
	address := waitForAddress(t, s)
	stall(t, address, maxConns+8)
	waitFor(t, "a response to a client that sends a request", func() bool {
		response, err := http.Get("http://" + address + metricsPath)
		if err != nil {
			return false
		}

		response.Body.Close()
		http.DefaultClient.CloseIdleConnections()
		return true
	})
}

func TestLargeHeaderIsRefused(t *testing.T) {
	useFolder(t)
	s := openServer(t, "job", 0, "localhost:0")
	s.Start()
	q, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
		"http://"+waitForAddress(t, s)+metricsPath, nil)
	if err != nil {
		t.Fatal(err)
	}

	q.Header.Set("Authorization", "Bearer "+strings.Repeat("x", 1<<20))
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(q)
	if err != nil {
		return // the server closed the connection while the client was sending the header
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("status %d; want %d", response.StatusCode, http.StatusRequestHeaderFieldsTooLarge)
	}
}
