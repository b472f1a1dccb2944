package plain

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
)

// readJSON decodes JSON with the stack machine for pickles. The token { pushes an empty dict, and [
// an empty list. Both mark the current top of the stack. Keys and scalars push values. The tokens }
// and ] remove the last mark, and move the values above it into the dict or list.
func (m *machine) readJSON(in *input) error {
	decoder := json.NewDecoder(in.r)
	decoder.UseNumber()
	for {
		token, err := decoder.Token()
		if err != nil {
			return jsonError(err, decoder.InputOffset())
		}

		if err := m.addJSONToken(token); err != nil {
			return err
		}

		if len(m.marks) == 0 { // the value is complete
			return checkJSONEnd(decoder)
		}
	}
}

// checkJSONEnd returns an error if anything except white space follows the value.
func checkJSONEnd(decoder *json.Decoder) error {
	_, err := decoder.Token()
	isValidToken := err == nil
	isInvalidToken := errors.As(err, new(*json.SyntaxError)) || errors.Is(err, io.ErrUnexpectedEOF)
	switch {
	case errors.Is(err, io.EOF):
		return nil
	case isValidToken || isInvalidToken:
		return formatError("it goes on after its end at byte %d", decoder.InputOffset())
	default: // the file cannot be read
		return jsonError(err, decoder.InputOffset())
	}
}

// jsonError converts an error of the decoder to an error for users.
func jsonError(err error, decoderOffset int64) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return formatError("it is cut off after %d bytes", decoderOffset)
	}

	var syntaxError *json.SyntaxError
	if errors.As(err, &syntaxError) {
		return formatError("it is neither JSON nor a pickle of protocol 2 to 5: byte %d: %v",
			syntaxError.Offset, err)
	}

	return fmt.Errorf("reading JSON: %w", err)
}

// addJSONToken applies a token to the stack.
func (m *machine) addJSONToken(token json.Token) error {
	switch t := token.(type) {
	case json.Delim:
		return m.addJSONDelimiter(t)
	case string: // a value or a key
		v, err := m.doc.findOrAddString([]byte(t))
		if err != nil {
			return err
		}

		return m.push(v)
	case json.Number:
		return m.push(parseJSONNumber(t))
	case bool:
		return m.push(boolValue(t))
	default: // null
		const none = Value(0)
		return m.push(none)
	}
}

// parseJSONNumber returns an integer if the number is an int64, an unsupported value if it is too
// large for a float64, and otherwise a float.
func parseJSONNumber(number json.Number) Value {
	if n, err := strconv.ParseInt(string(number), 10, 64); err == nil {
		return intValue(n)
	}

	f, err := number.Float64()
	if err != nil {
		return makeValue(tagUnsupported, 0)
	}

	return floatValue(f)
}

// addJSONDelimiter begins or ends an object or an array.
func (m *machine) addJSONDelimiter(d json.Delim) error {
	switch d {
	case '{':
		if err := m.pushDict(); err != nil {
			return err
		}

		return m.addMark()
	case '[':
		if err := m.pushList(); err != nil {
			return err
		}

		return m.addMark()
	case '}':
		return m.appendToDict()
	default: // ']'
		return m.appendToList()
	}
}
