package handoff

import (
	"errors"
	"testing"

	"pgregory.net/rapid"
)

func TestDecodeRequestReturnsEncodedTokenAndKey(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var token Token
		copy(token[:], rapid.SliceOfN(rapid.Byte(), len(token), len(token)).Draw(t, "token"))
		key := Key{
			Namespace: rapid.Uint64().Draw(t, "namespace"),
			Number:    rapid.Uint32().Draw(t, "number"),
		}
		gotToken, gotKey, err := decodeRequest(encodeRequest(token, key))
		if err != nil {
			t.Fatal(err)
		}

		if gotToken != token || gotKey != key {
			t.Fatalf("decodeRequest = %v, %+v; want %v, %+v", gotToken, gotKey, token, key)
		}
	})
}

const unknownStatus = 77 // arbitrary

func TestDecodeResponseReturnsErrorForStatus(t *testing.T) {
	for name, c := range map[string]struct {
		frame []byte
		want  error
	}{
		"a found file":      {frame: encodeResponse(statusFound), want: nil},
		"an unknown key":    {frame: encodeResponse(statusUnknown), want: ErrUnknownKey},
		"a refused request": {frame: encodeResponse(statusRefused), want: ErrRefused},
		"an unknown status": {frame: encodeResponse(unknownStatus), want: ErrProtocol},
		"protocol ID 0":     {frame: make([]byte, responseBytes), want: ErrProtocol},
		"a truncated frame": {
			frame: encodeResponse(statusFound)[:responseBytes-1], want: ErrProtocol,
		},
		"a frame with extra bytes": {
			frame: append(encodeResponse(statusFound), 0), want: ErrProtocol,
		},
		"an empty frame": {frame: nil, want: ErrProtocol},
	} {
		if err := decodeResponse(c.frame); !errors.Is(err, c.want) {
			t.Errorf("decodeResponse of %s = %v, want %v", name, err, c.want)
		}
	}
}

func TestNamespaceOfIdentifiesName(t *testing.T) {
	names := map[uint64]string{} // by namespace
	for _, name := range []string{"", "group/0", "group/1", "group/10", "pool", "group/"} {
		if other, isTaken := names[NamespaceOf(name)]; isTaken {
			t.Errorf("%q and %q have the same namespace", name, other)
		}

		names[NamespaceOf(name)] = name
	}

	// Two processes compute the namespace independently.
	if first, second := NamespaceOf("pool"), NamespaceOf("pool"); first != second {
		t.Errorf("NamespaceOf(\"pool\") = %#x, then %#x; want the same value", first, second)
	}
}

// decodeRequest accepts only frames that encodeRequest can return.
func FuzzDecodeRequest(f *testing.F) {
	validFrame := encodeRequest(Token{1, 2, 3}, Key{Namespace: 4, Number: 5})
	f.Add(validFrame)
	f.Add(validFrame[:len(validFrame)-1])
	f.Add(append(validFrame, 0))
	f.Add([]byte("GET / HTTP/1.1\r\n"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, frame []byte) {
		token, key, err := decodeRequest(frame)
		if err != nil {
			if !errors.Is(err, ErrProtocol) {
				t.Fatalf("decodeRequest(%x) = %v, want ErrProtocol", frame, err)
			}

			if token != (Token{}) || key != (Key{}) {
				t.Fatalf("decodeRequest(%x) = %v, %+v with an error, want zero values", frame, token,
					key)
			}

			return
		}

		if string(encodeRequest(token, key)) != string(frame) {
			t.Fatalf("decodeRequest(%x) = %v, %+v, which is encoded differently", frame, token, key)
		}
	})
}

// decodeResponse accepts only the response for statusFound.
func FuzzDecodeResponse(f *testing.F) {
	for _, status := range []uint32{statusFound, statusUnknown, statusRefused, unknownStatus} {
		f.Add(encodeResponse(status))
	}

	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, frame []byte) {
		err := decodeResponse(frame)
		if err == nil && string(frame) != string(encodeResponse(statusFound)) {
			t.Fatalf("decodeResponse(%x) = nil, want an error", frame)
		}
	})
}
