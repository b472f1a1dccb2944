package live

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
)

// Paths of URLs. The path / is the page, which loads its data from dataPath.
const (
	jsonPath    = "/debug/symmem"
	alivePath   = "/debug/symmem/alive" // for holdConnection
	metricsPath = "/metrics"
	statusPath  = "/status"
	dataPath    = "/data.bin"
)

// cookieName is the cookie that contains the token of the job.
const cookieName = "symmem-token"

// machineReader returns the states of ranks, with up to eventLimit events per pool.
type machineReader func(ctx context.Context, eventLimit int) Machine

// maxEvents is the highest eventLimit that a request can have.
const maxEvents = 8192

// newMux returns a handler for all paths except alivePath.
func newMux(read machineReader) *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		writeEmptyPage(w)
	})
	mux.HandleFunc("GET "+dataPath, func(w http.ResponseWriter, r *http.Request) {
		writeData(w, r, read(r.Context(), pageEvents))
	})
	mux.HandleFunc("GET "+statusPath, func(w http.ResponseWriter, r *http.Request) {
		writeStatus(w, read(r.Context(), 0))
	})
	mux.HandleFunc("GET "+jsonPath, func(w http.ResponseWriter, r *http.Request) {
		eventLimit, err := parseEventLimit(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		writeJSON(w, read(r.Context(), eventLimit))
	})
	mux.HandleFunc("GET "+metricsPath, func(w http.ResponseWriter, r *http.Request) {
		writeMetrics(w, r, read(r.Context(), 0))
	})
	return mux
}

// parseEventLimit returns the number in the URL's parameter "events", or 0 without the parameter.
func parseEventLimit(r *http.Request) (int, error) {
	text := r.URL.Query().Get("events")
	if text == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n > maxEvents {
		return 0, fmt.Errorf("events must be a number from 0 to %d", maxEvents)
	}
	return n, nil
}

// Handler returns a handler that shows all ranks of the job on this machine. The caller must
// restrict access, because it does not check the token or the Host of requests.
func (s *Server) Handler() http.Handler { return protect(newMux(s.readMachine)) }

// NewHandler returns a handler that shows one rank. It needs no Server, and does not check
// requests either.
func NewHandler(snapshot func(eventLimit int) Snapshot) http.Handler {
	return protect(newMux(func(_ context.Context, eventLimit int) Machine {
		return newMachine(snapshot(eventLimit))
	}))
}

// localHandler returns the handler for the Unix socket. It shows only this rank.
func (s *Server) localHandler() http.Handler {
	mux := newMux(func(_ context.Context, eventLimit int) Machine {
		return newMachine(s.ownSnapshot(eventLimit))
	})
	mux.HandleFunc("GET "+alivePath, s.holdConnection)
	return protect(mux)
}

// remoteHandler returns the handler for TCP. It shows all ranks of the job on this machine. Unless
// isLoopback is set, it serves only metrics.
func (s *Server) remoteHandler(isLoopback bool) http.Handler {
	mux := newMux(s.readMachine)
	configuredHost, _, _ := net.SplitHostPort(s.cfg.Address)
	return protect(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case !isAllowedHost(r.Host, configuredHost):
			http.Error(w, "the URL's host is not a name of this machine: use its IP address",
				http.StatusMisdirectedRequest)
		case r.URL.Path == metricsPath:
			mux.ServeHTTP(w, r)
		case !isLoopback:
			http.Error(w, "this address serves only "+metricsPath+": for other pages, set SYMMEM_HTTP to "+
				"an address of localhost, or use symmem status", http.StatusForbidden)
		case s.authorize(w, r):
			mux.ServeHTTP(w, r)
		}
	}))
}

// protect returns a handler that rejects requests with a body. Its headers prevent browsers from
// storing responses and from showing them inside other pages.
func protect(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, 0)
		header := w.Header()
		header.Set("Cache-Control", "no-store")
		header.Set("Content-Security-Policy",
			"default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'")
		header.Set("Referrer-Policy", "no-referrer")
		header.Set("X-Content-Type-Options", "nosniff")
		h.ServeHTTP(w, r)
	})
}

// isAllowedHost reports whether the Host of a request is an IP address or a name of this machine.
// Other names could be a case of DNS rebinding: the owner of a domain makes it resolve to this
// machine, so that a web page of the domain can read responses.
func isAllowedHost(host, configuredHost string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil { // an error means that there is no port
		host = name
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if net.ParseIP(host) != nil {
		return true
	}
	ownName, _ := os.Hostname()
	for _, name := range []string{"localhost", ownName, configuredHost} {
		if name != "" && strings.EqualFold(host, name) {
			return true
		}
	}
	return false
}

// authorize reports whether a request contains the token as a bearer token or in a cookie. If it
// returns false, it has written the response: a redirection that stores a token from the URL in a
// cookie, or status 401.
func (s *Server) authorize(w http.ResponseWriter, r *http.Request) bool {
	token, isBearer := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if isBearer && s.isToken(token) {
		return true
	}
	if c, err := r.Cookie(cookieName); err == nil && s.isToken(c.Value) {
		return true
	}
	if s.isToken(r.URL.Query().Get("token")) && r.Method == http.MethodGet {
		http.SetCookie(w, &http.Cookie{
			Name: cookieName, Value: s.token, Path: "/", HttpOnly: true,
			SameSite: http.SameSiteStrictMode,
		})
		http.Redirect(w, r, r.URL.EscapedPath(), http.StatusSeeOther)
		return false
	}
	w.Header().Set("WWW-Authenticate", "Bearer")
	http.Error(w, "the token of the job is missing or wrong: open the URL that symmem status prints",
		http.StatusUnauthorized)
	return false
}

// isToken compares text with the token in constant time, so that the time reveals nothing.
func (s *Server) isToken(text string) bool {
	return subtle.ConstantTimeCompare([]byte(text), []byte(s.token)) == 1
}

// holdConnection keeps a connection from another rank open, so that the other rank notices when
// this rank exits.
func (s *Server) holdConnection(w http.ResponseWriter, r *http.Request) {
	control := http.NewResponseController(w)
	noDeadline := time.Time{}
	if control.SetReadDeadline(noDeadline) != nil || control.SetWriteDeadline(noDeadline) != nil {
		return
	}
	w.WriteHeader(http.StatusOK)
	if control.Flush() == nil {
		<-r.Context().Done()
	}
}

func writeJSON(w http.ResponseWriter, m Machine) {
	text, err := json.Marshal(m)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(text) // fails if the client has disconnected
}
