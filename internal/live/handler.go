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

// URL paths.
const (
	jsonPath    = "/debug/symmem"
	alivePath   = "/debug/symmem/alive" // see holdConnection
	metricsPath = "/metrics"
	statusPath  = "/status"
	dataPath    = "/data.bin" // binary data for the page at "/"
)

// machineReader returns the states of ranks, with up to eventLimit events of each pool.
type machineReader func(ctx context.Context, eventLimit int) Machine

const (
	noEvents  = 0
	maxEvents = 8192 // highest eventLimit of a request, to limit the size of the response
)

// newMux returns a mux for all paths except alivePath.
func newMux(read machineReader) *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		writeShell(w)
	})
	mux.HandleFunc("GET "+dataPath, func(w http.ResponseWriter, r *http.Request) {
		writeData(w, r, read(r.Context(), pageEventLimit))
	})
	mux.HandleFunc("GET "+statusPath, func(w http.ResponseWriter, r *http.Request) {
		writeStatus(w, read(r.Context(), noEvents))
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
		writeMetrics(w, r, read(r.Context(), noEvents))
	})
	return mux
}

// parseEventLimit returns the query parameter "events", or noEvents if the URL has none.
func parseEventLimit(r *http.Request) (int, error) {
	text := r.URL.Query().Get("events")
	if text == "" {
		return noEvents, nil
	}

	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n > maxEvents {
		return 0, fmt.Errorf("events must be a number from 0 to %d", maxEvents)
	}

	return n, nil
}

// Handler returns a handler that shows all ranks of the job on this machine. It does not check the
// token or the Host of requests, so the caller must restrict access.
func (s *Server) Handler() http.Handler { return protect(newMux(s.readMachine)) }

// NewHandler returns a handler that shows one rank, without a Server. The caller must restrict
// access, as for [Server.Handler].
func NewHandler(snapshot func(eventLimit int) Snapshot) http.Handler {
	return protect(newRankMux(snapshot))
}

// newRankMux returns a mux that serves only one rank.
func newRankMux(snapshot func(eventLimit int) Snapshot) *http.ServeMux {
	return newMux(func(_ context.Context, eventLimit int) Machine {
		return newMachineWith(snapshot(eventLimit))
	})
}

func (s *Server) socketHandler() http.Handler {
	mux := newRankMux(s.ownSnapshot)
	mux.HandleFunc("GET "+alivePath, s.holdConnection)
	return protect(mux)
}

// tcpHandler serves all ranks on this machine. Metrics are public. The other paths require the
// job's token and a listener at a loopback address.
func (s *Server) tcpHandler(isLoopback bool) http.Handler {
	mux := newMux(s.readMachine)
	configuredHost, _, _ := net.SplitHostPort(s.cfg.Address) // "" after an error
	return protect(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		isPublic := r.URL.Path == metricsPath
		switch {
		case !isAllowedHost(r.Host, configuredHost):
			http.Error(w, "the URL's host is not a name of this machine: use the machine's IP address",
				http.StatusMisdirectedRequest)
		case isPublic:
			mux.ServeHTTP(w, r)
		case !isLoopback:
			http.Error(w, "this address serves only "+metricsPath+": for other pages, set SYMMEM_HTTP to "+
				"an address of localhost, or use symmem status", http.StatusForbidden)
		case s.hasToken(r):
			mux.ServeHTTP(w, r)
		case r.Method == http.MethodGet && s.isToken(r.URL.Query().Get("token")):
			s.moveTokenToCookie(w, r)
		default:
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "the token of the job is missing or wrong: open the URL that symmem status prints",
				http.StatusUnauthorized)
		}
	}))
}

// protect prevents browsers from storing responses or embedding them in other pages. It also
// rejects request bodies.
func protect(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		const noBody = 0
		r.Body = http.MaxBytesReader(w, r.Body, noBody)
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
// The check prevents DNS rebinding: another domain may resolve to this machine.
func isAllowedHost(host, configuredHost string) bool {
	hostWithoutPort, _, err := net.SplitHostPort(host)
	hasPort := err == nil
	if hasPort {
		host = hostWithoutPort
	}

	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]") // IPv6 without a port
	if net.ParseIP(host) != nil {
		return true
	}

	ownName, _ := os.Hostname() // "" after an error
	for _, name := range []string{"localhost", ownName, configuredHost} {
		if name != "" && strings.EqualFold(host, name) {
			return true
		}
	}

	return false
}

const cookieName = "symmem-token"

func (s *Server) hasToken(r *http.Request) bool {
	token, isBearer := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if isBearer && s.isToken(token) {
		return true
	}

	cookie, err := r.Cookie(cookieName)
	return err == nil && s.isToken(cookie.Value)
}

// moveTokenToCookie sets the cookie and redirects to the URL without its query.
func (s *Server) moveTokenToCookie(w http.ResponseWriter, r *http.Request) {
	http.SetCookie(w, &http.Cookie{
		Name:     cookieName,
		Value:    s.token,
		Path:     "/",
		HttpOnly: true,
		SameSite: http.SameSiteStrictMode,
	})
	http.Redirect(w, r, r.URL.EscapedPath(), http.StatusSeeOther)
}

// isToken compares in constant time, against timing attacks.
func (s *Server) isToken(text string) bool {
	return subtle.ConstantTimeCompare([]byte(text), []byte(s.token)) == 1
}

// holdConnection keeps a connection from another rank open until that rank closes it. If this rank
// exits, the connection breaks.
func (s *Server) holdConnection(w http.ResponseWriter, r *http.Request) {
	control := http.NewResponseController(w)
	noDeadline := time.Time{}
	if err := control.SetReadDeadline(noDeadline); err != nil {
		return
	}

	if err := control.SetWriteDeadline(noDeadline); err != nil {
		return
	}

	w.WriteHeader(http.StatusOK)
	if err := control.Flush(); err != nil {
		return
	}

	<-r.Context().Done()
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
