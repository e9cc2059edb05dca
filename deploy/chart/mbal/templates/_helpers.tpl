{{- define "mbal.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "mbal.coordinator" -}}{{ include "mbal.fullname" . }}-coordinator{{- end -}}
{{- define "mbal.domain" -}}{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}{{- end -}}

{{/* Whether servers share the keys. */}}
{{- define "mbal.isCluster" -}}{{- if ne .Values.architecture "standalone" -}}yes{{- end -}}{{- end -}}
{{- define "mbal.hasEtcd" -}}{{- if .Values.coordinator.etcd.endpoints -}}yes{{- end -}}{{- end -}}
{{- define "mbal.autoscales" -}}{{- if and (include "mbal.isCluster" .) .Values.autoscaling.enabled -}}yes{{- end -}}{{- end -}}

{{- define "mbal.image" -}}
{{- $image := .Values.image -}}
{{- with $image.registry -}}{{ . }}/{{- end -}}{{ $image.repository }}
{{- if $image.digest -}}@{{ $image.digest }}{{- else -}}:{{ default .Chart.AppVersion $image.tag }}{{- end -}}
{{- end -}}

{{/* A dict of `root` and `component`. */}}
{{- define "mbal.selector" -}}
app.kubernetes.io/name: {{ default .root.Chart.Name .root.Values.nameOverride }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "mbal.labels" -}}
{{ include "mbal.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/part-of: {{ include "mbal.fullname" .root }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* A dict of `root`, `component` and `name`, perhaps `namespace`, `labels` and `annotations`. */}}
{{- define "mbal.metadata" -}}
name: {{ .name }}
namespace: {{ default .root.Release.Namespace .namespace }}
labels:
  {{- include "mbal.labels" . | nindent 2 }}
  {{- with .labels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with merge (dict) (default (dict) .annotations) .root.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "mbal.secretName" -}}{{ default (include "mbal.fullname" .) .Values.existingSecret }}{{- end -}}
{{- define "mbal.authSecretName" -}}{{ default (printf "%s-auth" (include "mbal.fullname" .)) .Values.auth.existingSecret }}{{- end -}}

{{- define "mbal.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{ default (include "mbal.fullname" .) .Values.serviceAccount.name }}
{{- else -}}
{{ default "default" .Values.serviceAccount.name }}
{{- end -}}
{{- end -}}

{{- define "mbal.coordinatorServiceAccount" -}}
{{- if .Values.coordinator.serviceAccount.create -}}
{{ default (include "mbal.coordinator" .) .Values.coordinator.serviceAccount.name }}
{{- else -}}
{{ default "default" .Values.coordinator.serviceAccount.name }}
{{- end -}}
{{- end -}}

{{/* By the pods' own names: these stay while a pod is replaced. */}}
{{- define "mbal.coordinatorUrls" -}}
{{- $urls := list -}}
{{- range $i := until (int .Values.coordinator.replicaCount) -}}
{{- $name := include "mbal.coordinator" $ -}}
{{- $urls = append $urls (printf "http://%s-%d.%s-headless.%s:%d" $name $i $name (include "mbal.domain" $) (int $.Values.coordinator.port)) -}}
{{- end -}}
{{- join "," $urls -}}
{{- end -}}

{{- define "mbal.hasPreStop" -}}
{{- if and (int .Values.preStopSeconds) (semverCompare ">=1.30.0-0" .Capabilities.KubeVersion.Version) -}}yes{{- end -}}
{{- end -}}

{{/* The grace period covers what happens in it. */}}
{{- define "mbal.graceSeconds" -}}
{{- $least := int .Values.preStopSeconds -}}
{{- if include "mbal.isCluster" . -}}{{- $least = add $least .Values.drainSeconds -}}{{- end -}}
{{- if kindIs "invalid" .Values.terminationGracePeriodSeconds -}}
{{- add $least 15 -}}
{{- else -}}
{{- if le (int .Values.terminationGracePeriodSeconds) (int $least) -}}
{{- fail (printf "terminationGracePeriodSeconds: %d s end before preStopSeconds and drainSeconds (%d s) do: items would be lost" (int .Values.terminationGracePeriodSeconds) (int $least)) -}}
{{- end -}}
{{- int .Values.terminationGracePeriodSeconds -}}
{{- end -}}
{{- end -}}

{{/* What contradicts itself is refused before anything is installed. */}}
{{- define "mbal.validate" -}}
{{- $values := .Values -}}
{{- if and (eq (toString $values.memory) "auto") (not (dig "limits" "memory" "" $values.resources)) -}}
{{- fail "memory: auto is three quarters of resources.limits.memory, which is not set: without it a pod would take three quarters of its node" -}}
{{- end -}}
{{- if and $values.tls.enabled (not $values.tls.existingSecret) -}}
{{- fail "tls.existingSecret: names the secret of certificate and key" -}}
{{- end -}}
{{- if and $values.tls.requireClientCert (not $values.tls.certCAFilename) -}}
{{- fail "tls.requireClientCert: needs tls.certCAFilename, or nobody would be let in" -}}
{{- end -}}
{{- if and $values.auth.enabled (not $values.auth.existingSecret) (not $values.auth.username) -}}
{{- fail "auth.username: is empty; or name a secret with auth.existingSecret" -}}
{{- end -}}
{{- if include "mbal.isCluster" . -}}
{{- if and (gt (int $values.coordinator.replicaCount) 1) (not (include "mbal.hasEtcd" .)) -}}
{{- fail "coordinator.replicaCount: several coordinators need coordinator.etcd.endpoints" -}}
{{- end -}}
{{- if and $values.autoscaling.enabled (kindIs "invalid" $values.autoscaling.databaseRate) -}}
{{- fail "autoscaling.databaseRate: reads a second that the database behind the cache bears" -}}
{{- end -}}
{{- else if $values.autoscaling.enabled -}}
{{- fail "autoscaling.enabled: is for architecture: cluster" -}}
{{- end -}}
{{- if and $values.metrics.serviceMonitor.enabled $values.metrics.podMonitor.enabled -}}
{{- fail "metrics: serviceMonitor and podMonitor would read everything twice" -}}
{{- end -}}
{{- end -}}

{{/* An object's `key` if it is there already, else `fresh`. A dict of `root`, `name`, `key` and `fresh`; base64. */}}
{{- define "mbal.kept" -}}
{{- $there := lookup "v1" "Secret" .root.Release.Namespace .name -}}
{{- default (b64enc .fresh) (dig "data" .key "" (default (dict) $there)) -}}
{{- end -}}

{{/* How many servers there are to be: an autoscaler's word is not taken back by an upgrade. */}}
{{- define "mbal.replicas" -}}
{{- $there := dict -}}
{{- if include "mbal.autoscales" . -}}
{{- $there = default (dict) (lookup "apps/v1" "StatefulSet" .Release.Namespace (include "mbal.fullname" .)) -}}
{{- end -}}
{{- int (dig "spec" "replicas" .Values.replicaCount $there) -}}
{{- end -}}
