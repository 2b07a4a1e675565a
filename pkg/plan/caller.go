package plan

// Caller is who sent a request, as the API server says of the token that came with it.
type Caller struct {
	Name   string // the username
	UID    string
	Groups []string
	Extra  map[string][]string
}
