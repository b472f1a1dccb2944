package live

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"symmem/internal/sys"
)

// Config describes a rank for Open.
type Config struct {
	// Job is the name of the job's folder. It must be the same on all ranks of the job, and
	// different from the names of other jobs' folders.
	Job  string
	Rank int
	// Address is the TCP address at which one rank per machine serves all ranks of the machine, or
	// SocketsOnly. CheckAddress describes its form.
	Address string
	// Token is the token that clients must present. It consists of at least 16 letters, digits, "-"
	// and "_". If it is empty, the first rank to open a Server on the machine generates one.
	Token string
	// Snapshot returns the current state of the rank. The state of a pool includes its latest
	// events, up to the given number. Snapshot may be called concurrently.
	Snapshot func(events int) Snapshot
	// Log receives warnings.
	Log *slog.Logger
}

// SocketsOnly is the address that disables TCP.
const SocketsOnly = "unix"

// CheckAddress returns an error unless the address is SocketsOnly or has the form "host:port" with
// a numeric port.
func CheckAddress(address string) error {
	if address == SocketsOnly {
		return nil
	}
	_, port, err := net.SplitHostPort(address)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		return fmt.Errorf("%q is neither %q nor host:port, such as localhost:9400", address, SocketsOnly)
	}
	return nil
}

const (
	// maxLocalConns and maxConns limit the number of open connections to a Unix socket and to the
	// TCP address. The limit for sockets is higher because all other ranks of the machine keep a
	// connection to the lowest rank.
	maxLocalConns, maxConns = 1024, 64
	// maxHeaderBytes limits the size of a request's header.
	maxHeaderBytes = 8 << 10
	// headerTimeout limits how long a client may take to send a request, writeTimeout how long it
	// may take to read the response, and idleTimeout how long it may wait before the next request.
	headerTimeout, writeTimeout, idleTimeout = 5 * time.Second, 20 * time.Second, 30 * time.Second
	// retryInterval is the time between attempts to serve an address that is in use.
	retryInterval = 2 * time.Second
	// electionPause is the time between two searches for the lowest rank.
	electionPause = 20 * time.Millisecond
)

// Server serves the state of a rank on a Unix socket. While the rank is the lowest one on its
// machine, the Server also serves all ranks of the machine over TCP. It is safe for concurrent
// use.
type Server struct {
	cfg    Config
	folder string
	token  string
	local  *http.Server
	tasks  sync.WaitGroup
	ctx    context.Context // done after Close
	cancel context.CancelFunc
	// address is the TCP address at which this rank serves, or nil if it does not.
	address atomic.Pointer[net.TCPAddr]
}

// Open creates the rank's socket and starts serving it.
func Open(cfg Config) (*Server, error) {
	s, err := open(cfg)
	if err != nil {
		return nil, fmt.Errorf("serving rank %d on a Unix socket: %w", cfg.Rank, err)
	}
	return s, nil
}

func open(cfg Config) (*Server, error) {
	root := Root()
	s := &Server{cfg: cfg, folder: filepath.Join(root, cfg.Job)}
	for _, folder := range []string{root, s.folder} {
		if err := createFolder(folder); err != nil {
			return nil, err
		}
	}
	Sweep()
	var err error
	if s.token, err = shareToken(s.folder, cfg.Token); err != nil {
		return nil, err
	}
	listener, err := listenUnix(s.folder, cfg.Rank)
	if err != nil {
		return nil, err
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.local = newHTTPServer(s.localHandler())
	s.tasks.Go(func() {
		_ = s.local.Serve(&limiter{Listener: listener, limit: maxLocalConns}) // returns after Close
	})
	return s, nil
}

// tokens matches valid tokens. The length is limited because a longer token would not fit into the
// header of a request.
var tokens = regexp.MustCompile(`^[A-Za-z0-9_-]{16,512}$`)

// shareToken returns the token that is stored in the folder of a job. If none is stored yet, it
// first stores the given token or, if that is empty, a random one.
func shareToken(folder, token string) (string, error) {
	path := filepath.Join(folder, tokenName)
	draft := filepath.Join(folder, "."+rand.Text())
	if token == "" {
		token = rand.Text()
	}
	if !tokens.MatchString(token) {
		return "", errors.New("SYMMEM_HTTP_TOKEN must have at least 16 letters, digits, - and _; draw " +
			"one, for example by openssl rand -hex 16")
	}
	if err := os.WriteFile(draft, []byte(token+"\n"), 0o600); err != nil {
		return "", err
	}
	err := os.Link(draft, path)
	if errors.Is(err, fs.ErrExist) {
		err = nil
	}
	if err := errors.Join(err, os.Remove(draft)); err != nil {
		return "", err
	}
	return Token(folder)
}

// Token returns the token of a job.
func Token(folder string) (string, error) {
	text, err := os.ReadFile(filepath.Join(folder, tokenName))
	if err != nil {
		return "", fmt.Errorf("reading the token of a job: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}

func newHTTPServer(h http.Handler) *http.Server {
	return &http.Server{
		Handler: h, ReadHeaderTimeout: headerTimeout, ReadTimeout: headerTimeout,
		WriteTimeout: writeTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes,
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
	}
}

// Start makes the rank serve the TCP address whenever it is the lowest rank on its machine. All
// ranks of the machine must already have opened their Servers, so that no lower rank appears later.
func (s *Server) Start() {
	if s.cfg.Address != SocketsOnly {
		s.tasks.Go(s.serveWhileLowest)
	}
}

// Close closes all connections and removes the socket. It does not wait until requests have been
// answered.
func (s *Server) Close() error {
	s.cancel()
	_ = os.Remove(socketPath(s.folder, s.cfg.Rank))
	err := s.local.Close()
	s.tasks.Wait()
	removeFolder(s.folder)
	return err
}

// Address returns the TCP address at which this rank serves, or "" if it does not, for example
// because a lower rank does.
func (s *Server) Address() string {
	if a := s.address.Load(); a != nil {
		return a.String()
	}
	return ""
}

// serveWhileLowest serves the address whenever this rank is the lowest one, until Close.
func (s *Server) serveWhileLowest() {
	warned := false
	for s.ctx.Err() == nil {
		if s.followLower() {
			s.pause(electionPause)
			continue
		}
		if err := s.serveAddress(); err != nil && !warned {
			s.cfg.Log.Warn("symmem: serving the live view: "+err.Error()+"; this rank keeps trying",
				"rank", s.cfg.Rank, "address", s.cfg.Address)
			warned = true
		}
		s.pause(retryInterval)
	}
}

func (s *Server) pause(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.ctx.Done():
	}
}

// followLower waits until the lowest running rank exits, and returns true. If no rank below this
// one is running, it returns false immediately.
func (s *Server) followLower() bool {
	ranks, err := Ranks(s.folder)
	if err != nil {
		return false
	}
	for _, rank := range ranks {
		if rank >= s.cfg.Rank {
			break
		}
		if s.follow(rank) {
			return true
		}
	}
	return false
}

// follow waits until a rank exits, and returns true. If the rank has already exited, it returns
// false immediately.
func (s *Server) follow(rank int) bool {
	c, err := net.Dial("unix", socketPath(s.folder, rank))
	if err != nil {
		return false
	}
	defer context.AfterFunc(s.ctx, func() { _ = c.Close() })()
	_, _ = fmt.Fprintf(c, "GET %s HTTP/1.0\r\n\r\n", alivePath)
	for buffer := make([]byte, 512); err == nil; {
		_, err = c.Read(buffer)
	}
	_ = c.Close()
	return true
}

// serveAddress serves all ranks of the machine at the configured address until Close. It returns
// an error if the address cannot be used.
func (s *Server) serveAddress() error {
	listener, err := net.Listen("tcp", s.cfg.Address)
	if err != nil {
		return err
	}
	sys.CloseInForks(listener) // a child would keep the address in use after this rank exits
	at := listener.Addr().(*net.TCPAddr)
	s.address.Store(at)
	defer s.address.Store(nil)
	server := newHTTPServer(s.remoteHandler(at.IP.IsLoopback()))
	defer context.AfterFunc(s.ctx, func() { _ = server.Close() })()
	s.cfg.Log.Info("symmem: live view of the ranks of this machine", "rank", s.cfg.Rank,
		"address", "http://"+at.String(), "token", filepath.Join(s.folder, tokenName))
	err = server.Serve(&limiter{Listener: listener, limit: maxConns})
	if s.ctx.Err() != nil {
		return nil
	}
	return errors.Join(err, server.Close())
}
